"""A fleet's eligible candidates kept from request to request: their loads are looked at again only when they changed.

What is kept is what `router.load_guard.pressures` would find anew for every request. A number changes when a candidate
is replaced, when `Assignments` says so, or at a time that is known beforehand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf

from index.worker import Trust
from router.assignments import Assignments
from router.candidate import Candidate
from router.load_guard import Told, counted, weight_of
from router.settings import RouterSettings
from router.standing_table import standing_table


class Standing:
    """At least one eligible candidate, in a fixed order: a candidate's place is its number in that order.

    `refresh` makes what `held` and `due` say as of a time. The matches of the candidates do not count.
    """

    def __init__(self, candidates: Sequence[Candidate], assignments: Assignments, settings: RouterSettings) -> None:
        self.candidates = list(candidates)
        self.places = {candidate.worker: place for place, candidate in enumerate(candidates)}
        self.trusted = [candidate.trust is not Trust.NONE for candidate in candidates]
        self.weights = [weight_of(candidate) for candidate in candidates]
        self._assignments = assignments
        self._settings = settings
        self._table = standing_table(len(self.candidates), settings)
        for place in range(len(self.candidates)):
            self._tell(place)
        self._weighed = False
        self._stale: set[int] = set()
        self._seen, self._ends_reported = 0, False
        self._now, self._next = inf, -inf

    @property
    def ranks(self) -> list[float]:
        """The load of each for comparing, by place."""
        return self._table.ranks()

    def replace(self, candidate: Candidate) -> None:
        """The candidate's load, trust or weight is another now; its worker must be one of the standing."""
        place = self.places[candidate.worker]
        self.candidates[place] = candidate
        self.trusted[place] = candidate.trust is not Trust.NONE
        self.weights[place] = weight_of(candidate)
        self._tell(place)
        self._stale.add(place)

    def held(self, place: int) -> bool:
        """Whether the load guard holds the candidate back, or its queue outweighs its prefix."""
        return self._table.held(place)

    def weigh(self, saved: Mapping[int, int], prompt_tokens: int) -> None:
        """Weigh queues against prefixes for one request, until the next `refresh`.

        `saved`: by place, the tokens that a candidate will not compute, zero where it is left out.
        """
        self._weighed = True
        self._table.weigh(saved, prompt_tokens, self._settings.backlog_weight)

    def due(self, places: Sequence[int] | None) -> Sequence[int]:
        """Those of `places` with the least queue, where queues are weighed; of these, with the least rank.

        Of these, those with the fewest recent assignments, then longest idle. None: of all that are not held back.
        """
        if places is not None and len(places) == 1:
            return places
        return self._table.due(places, self._assignments.now, self._settings.spread_half_life_s)

    def refresh(self, now: float) -> None:
        """Take over what changed until `now`."""
        assignments = self._assignments
        assignments.advance(now)
        if self._weighed:
            self._table.unweigh()
            self._weighed = False
        ends_reported, back = assignments.ends_reported, now < self._now
        self._now = now
        if ends_reported is not self._ends_reported or back or not self._takes_over():
            self._ends_reported = ends_reported
            self._look(range(len(self.candidates)))
            return
        if now >= self._next:
            self._stale.update(self._table.over(now))
        if self._stale:
            self._look(self._stale)

    def _takes_over(self) -> bool:
        """Note whose requests changed since the last call. False: perhaps all."""
        changes = self._assignments.changes
        if changes.count == self._seen:
            return True
        changed = changes.since(self._seen)
        self._seen = changes.count
        if changed is None:
            return False
        for worker in changed:
            place = self.places.get(worker)
            if place is not None:
                self._stale.add(place)
        return True

    def _look(self, places: Iterable[int]) -> None:
        candidates, book = self.candidates, self._assignments.book
        books = {place: book(candidates[place].worker) for place in places}
        self._next = self._table.look(books, self._now, self._ends_reported)  # type: ignore[arg-type]
        self._stale.clear()

    def _tell(self, place: int) -> None:
        load = self.candidates[place].load
        self._table.tell(place, Told(counted(load), load.sampled_at, self.weights[place]))
