"""A fleet's eligible candidates kept from request to request: their loads are looked at again only when they changed.

What is kept is what `router.load_guard.pressures` would find anew for every request. A number changes when a candidate
is replaced, when `Assignments` says so, or at a time that is known beforehand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp2, inf

from index.worker import Trust
from router.assignments import Assignments
from router.backlog import Queue, outweighed
from router.candidate import Candidate
from router.load_guard import Sight, guard_limit, rank_of, reported, sight_of, weight_of
from router.settings import RouterSettings

_MARGIN_S = 1e-6
"""So much around a known time the numbers are looked at for every request: comparing clocks rounds."""


class Standing:
    """At least one eligible candidate, in a fixed order: a candidate's place is its number in that order.

    `refresh` makes `ranks`, `least` (the smallest of them) and what `held` says as of a time. The matches of the
    candidates do not count.
    """

    def __init__(self, candidates: Sequence[Candidate], assignments: Assignments, settings: RouterSettings) -> None:
        self.candidates = list(candidates)
        self.places = {candidate.worker: place for place, candidate in enumerate(candidates)}
        self.trusted = [candidate.trust is not Trust.NONE for candidate in candidates]
        self.weights = [weight_of(candidate) for candidate in candidates]
        self.ranks: list[float] = []
        self.least = 0.0
        self._limit = 0.0
        self._backlogs: list[float] = []
        self._outweighed: frozenset[int] = frozenset()
        self._assignments = assignments
        self._settings = settings
        self._sights: list[Sight] = []
        self._shares: list[tuple[float, float, float]] = []
        self._until: list[float] = []
        self._unreported = 0
        self._stale: set[int] = set()
        self._seen, self._ends_reported = 0, False
        self._now, self._next = inf, -inf

    def replace(self, candidate: Candidate) -> None:
        """The candidate's load, trust or weight is another now; its worker must be one of the standing."""
        place = self.places[candidate.worker]
        self.candidates[place] = candidate
        self.trusted[place] = candidate.trust is not Trust.NONE
        self.weights[place] = weight_of(candidate)
        self._stale.add(place)

    def held(self, place: int) -> bool:
        """Whether the load guard holds the candidate back, or its queue outweighs its prefix."""
        return self._sights[place].known > self._limit or place in self._outweighed

    def weigh(self, saved: Mapping[int, int], prompt_tokens: int) -> None:
        """Weigh queues against prefixes for one request, until the next `refresh`.

        `saved`: by place, the tokens that a candidate will not compute, zero where it is left out.
        """
        assignments = self._assignments
        pairs = zip(self.candidates, self.weights, strict=True)
        self._backlogs = [assignments.prefill_tokens(one.worker) / weight for one, weight in pairs]
        free = [place for place in range(len(self.candidates)) if not self.held(place)]
        queues = [Queue(self._backlogs[place], saved.get(place, 0)) for place in free]
        loses = outweighed(queues, prompt_tokens, self._settings.backlog_weight)
        self._outweighed = frozenset(place for place, lost in zip(free, loses, strict=True) if lost)

    def idlest(self) -> Sequence[int]:
        """The places of the least loaded candidates, with queues weighed of all to choose from; none is held back."""
        if self._backlogs:
            return [place for place in range(len(self.candidates)) if not self.held(place)]
        ranks, least = self.ranks, self.least
        if ranks.count(least) == 1:
            return [ranks.index(least)]
        return [place for place, rank in enumerate(ranks) if rank == least]

    def due(self, places: Sequence[int]) -> Sequence[int]:
        """Those of `places` with the least queue, where queues are weighed; of these, with the least rank.

        Of these, those with the fewest recent assignments, then longest idle.
        """
        if self._backlogs and len(places) > 1:
            shortest = min([self._backlogs[place] for place in places])
            places = [place for place in places if self._backlogs[place] == shortest]
        if len(places) > 1:
            least = min([self.ranks[place] for place in places])
            places = [place for place in places if self.ranks[place] == least]
        if len(places) == 1:
            return places
        now, half_life_s = self._assignments.now, self._settings.spread_half_life_s
        turns = [
            ((share * exp2((last - now) / half_life_s) if share else 0.0) + one, last)
            for share, last, one in map(self._shares.__getitem__, places)
        ]
        first = min(turns)
        return [place for place, turn in zip(places, turns, strict=True) if turn == first]

    def refresh(self, now: float) -> None:
        """Take over what changed until `now`."""
        assignments = self._assignments
        assignments.advance(now)
        self._backlogs, self._outweighed = [], frozenset()
        if now < self._now or assignments.ends_reported is not self._ends_reported:
            self._look_at_all(now)
            return
        self._now = now
        if assignments.changes.count != self._seen:
            changed = assignments.changes.since(self._seen)
            if changed is None:
                self._look_at_all(now)
                return
            self._seen = assignments.changes.count
            self._stale.update(self.places[worker] for worker in changed if worker in self.places)
        if now >= self._next:
            self._stale.update(place for place, until in enumerate(self._until) if until <= now)
        if self._stale:
            self._look_again(now)

    def _look_at_all(self, now: float) -> None:
        self._now = now
        self._seen, self._ends_reported = self._assignments.changes.count, self._assignments.ends_reported
        self._stale.clear()
        self._sights = [sight_of(one, self._assignments, self._settings, now) for one in self.candidates]
        self._shares = [self._share_of(place) for place in range(len(self.candidates))]
        self._until = [self._lasts(one, now) for one in self.candidates]
        self._unreported = sum(sight.report is None for sight in self._sights)
        self._rank_all()
        self._settle()

    def _look_again(self, now: float) -> None:
        mixed_before = self._unreported
        for place in self._stale:
            candidate = self.candidates[place]
            sight = sight_of(candidate, self._assignments, self._settings, now)
            self._shares[place] = self._share_of(place)
            self._until[place] = self._lasts(candidate, now)
            self._unreported += (sight.report is None) - (self._sights[place].report is None)
            self._sights[place] = sight
            self.ranks[place] = rank_of(sight, None)
        self._stale.clear()
        if mixed_before != self._unreported or 0 < self._unreported < len(self._sights):
            self._rank_all()
        self._settle()

    def _rank_all(self) -> None:
        reports = [sight.report for sight in self._sights if sight.report is not None]
        average = sum(reports) / len(reports) if reports else None
        self.ranks = [rank_of(sight, average) for sight in self._sights]

    def _settle(self) -> None:
        self._next = min(self._until)
        self.least = min(self.ranks)
        self._limit = guard_limit(self.least, self._settings)

    def _share_of(self, place: int) -> tuple[float, float, float]:
        """The candidate's assignments as of its last one, when that was, and what one more would add."""
        return *self._assignments.share_then(self.candidates[place].worker), 1 / self.weights[place]

    def _lasts(self, candidate: Candidate, now: float) -> float:
        """Until when the candidate's numbers stay as they are if nothing is reported."""
        settings, load = self._settings, candidate.load
        running, recent = self._assignments.oldest(candidate.worker)
        times = [running + settings.assignment_ttl_s]
        if reported(load, settings, now) is None or load.sampled_at is None:
            times.append(recent + settings.load_window_s)
        if load.sampled_at is not None:
            times.append(load.sampled_at + settings.load_stale_s)
        return next_time(times, now)


def next_time(times: Iterable[float], now: float) -> float:
    """The first of `times` that is not surely over, less a margin for rounding. Infinite when there is none."""
    return min((time - _MARGIN_S for time in times if time + _MARGIN_S >= now), default=inf)
