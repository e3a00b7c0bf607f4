"""The decision: which worker gets a request. Pure: matches and loads in, a `Decision` out, time as an argument.

Which worker, in this order:

1. The longest reusable prefix wins; among equals the deeper match, then the faster tiers. A worker that the load guard
   holds back (too many requests, or more prompt tokens before this one than the prefix is worth) is passed over: the
   next best prefix that is not held back gets the request, at last the least loaded.
2. Nobody can reuse anything: a worker that was just sent a prompt with this prefix (a guess, `router.predictions`).
3. Ties, and cold prompts without a guess: the session's last worker, unless held back; else the least loaded (the
   fewest prompt tokens to be computed, where first tokens are reported; then the fewest requests); among equals the
   one with the fewest recent assignments per weight, then the longest unused, at last a random one.

Which reason, first that fits:

- fallback: the tokens are not known, or no eligible worker has trustworthy events
- only: one eligible worker
- prefix: the chosen worker can reuse as much as any (and something)
- load: a longer prefix was held back
- affinity: nobody can reuse anything, and the session's last worker was chosen
- cold: nobody can reuse anything
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from index.prompt import WorkerMatch
from index.worker import Medium, Trust, Worker
from router.affinity import SessionAffinity
from router.assignments import Assignments
from router.candidate import Candidate, Decision, Reason, RouteQuery
from router.load_guard import Pressure, pressures, trusted_reuse, weight_of
from router.predictions import new_predictions
from router.settings import RouterSettings
from router.standing import Standing


class Router:
    """Decides, and remembers what was decided. `decide` leaves no trace, `record` does.

    Not thread-safe: call it from one thread. `now` is a monotonic clock in seconds.
    """

    def __init__(self, settings: RouterSettings, random: Random | None = None) -> None:
        self._settings = settings
        self._random = Random() if random is None else random  # noqa: S311
        self._assignments = Assignments(settings)
        self._sessions = SessionAffinity(settings.session_ttl_s, settings.session_limit)
        self._predictions = new_predictions(settings.predict_ttl_s, settings.predict_limit, settings.predict_boundaries)

    def decide(self, query: RouteQuery, candidates: Sequence[Candidate], now: float) -> Decision | None:
        """The worker for this request; None when no candidate is eligible. The candidates' order does not matter."""
        eligible = [candidate for candidate in candidates if candidate.why is None]
        if not eligible:
            return None
        guesses = {} if any(map(trusted_reuse, eligible)) else self._guesses(query, now)
        pressure = pressures(
            eligible, self._assignments, self._settings, now, prompt_tokens=query.prompt_tokens or 0, guesses=guesses
        )
        session = self._session(query, eligible, now)
        chosen = self._chosen(eligible, pressure, session, guesses)
        reason = _reason(query, eligible, chosen, session)
        scores = {c.worker: _score(query, c, pressure[c.worker]) for c in eligible}
        return Decision(chosen.worker, reason, scores, trusted_reuse(chosen), weight_of(chosen))

    def standing(self, eligible: Sequence[Candidate]) -> Standing:
        """Eligible candidates, at least one, to be kept for `decide_among`."""
        return Standing(eligible, self._assignments, self._settings)

    def decide_among(
        self, query: RouteQuery, standing: Standing, matches: Mapping[Worker, WorkerMatch], now: float
    ) -> Decision:
        """The same worker and reason as `decide` finds, at the cost of the matches and of what changed; no scores.

        `matches` are those of workers that hold anything; others than the candidates' do not count.
        """
        standing.refresh(now)
        guesses = self._weighed(query, standing, matches, now)
        best, longest = _best_among(standing, matches)
        if not longest:
            guesses = self._guesses_among(query, standing, now) if guesses is None else guesses
            best = _guessed_among(standing, guesses)
        session = self._session_among(query, standing, now)
        if session is not None and (session in best if best else not standing.held(session)):
            chosen = session
        else:
            chosen = self._least_loaded_among(best, standing)
        worker = standing.candidates[chosen].worker
        match = matches.get(worker) if standing.trusted[chosen] else None
        reusable = 0 if match is None else match.reusable
        reason = _reason_among(query, standing, longest, reusable, chosen == session)
        return Decision(worker, reason, {}, reusable, standing.weights[chosen])

    def record(self, request_id: str, decision: Decision, query: RouteQuery, now: float, note: object = None) -> None:
        """The request goes where `decision` says: count it as load, guess from it, remember the session.

        `note` is kept for `take_note` while the request is known.
        """
        worker, prompt = decision.worker, query.prompt_tokens or 0
        self._assignments.add(
            request_id, worker, weight=decision.weight, prompt=prompt, reusable=decision.reusable, now=now, note=note
        )
        if query.session_id is not None:
            self._sessions.remember(query.namespace, query.session_id, worker, now)
        if query.tokens is not None:
            self._predictions.remember(query.tokens, query.namespace, worker, now)

    def first_token(self, request_id: str, now: float) -> bool:
        """The request's prefill is done. False: the id is unknown or expired."""
        return self._assignments.first_token(request_id, now)

    def finished(self, request_id: str, now: float) -> bool:
        """The request is over. False: the id is unknown or expired."""
        return self._assignments.finished(request_id, now)

    def take_note(self, request_id: str) -> object:
        """What `record` was given to keep, once; None for an id that is unknown or expired."""
        return self._assignments.take_note(request_id)

    def inflight_prefill_tokens(self, worker: Worker, now: float | None = None) -> int:
        """Prompt tokens sent to `worker` and not known to be computed. `now` None: as of the last call with a time."""
        if now is not None:
            self._assignments.advance(now)
        return self._assignments.prefill_tokens(worker)

    def forget(self, worker: Worker) -> None:
        """The worker is gone: its load, sessions and guesses with it."""
        self._assignments.forget(worker)
        self._sessions.forget(worker)
        self._predictions.forget(worker)

    def _session(self, query: RouteQuery, eligible: Sequence[Candidate], now: float) -> Worker | None:
        if query.session_id is None:
            return None
        worker = self._sessions.worker(query.namespace, query.session_id, now)
        return worker if any(candidate.worker == worker for candidate in eligible) else None

    def _chosen(
        self,
        eligible: Sequence[Candidate],
        pressure: dict[Worker, Pressure],
        session: Worker | None,
        guesses: dict[Worker, int],
    ) -> Candidate:
        free = [candidate for candidate in eligible if not pressure[candidate.worker].held]
        best = _longest(free) or _guessed(free, guesses)
        for candidate in best or free:
            if candidate.worker == session:
                return candidate
        return self._least_loaded(best or free, pressure)

    def _guesses(self, query: RouteQuery, now: float) -> dict[Worker, int]:
        """What each will probably hold soon, in tokens."""
        return {} if query.tokens is None else self._predictions.longest(query.tokens, query.namespace, now)

    def _least_loaded(self, candidates: Sequence[Candidate], pressure: dict[Worker, Pressure]) -> Candidate:
        def due(candidate: Candidate) -> tuple[float, float, float, float]:
            share, last = self._assignments.share(candidate.worker)
            own = pressure[candidate.worker]
            return own.backlog, own.rank, share + 1 / weight_of(candidate), last

        ranked = [(due(candidate), candidate) for candidate in candidates]
        first = min(key for key, _ in ranked)
        equals = sorted((candidate for key, candidate in ranked if key == first), key=lambda equal: equal.worker)
        return equals[0] if len(equals) == 1 else self._random.choice(equals)

    # The same, among the standing

    def _weighed(
        self, query: RouteQuery, standing: Standing, matches: Mapping[Worker, WorkerMatch], now: float
    ) -> dict[int, int] | None:
        """Weigh queues where first tokens are reported. The guesses, if they had to be looked for."""
        if not self._assignments.first_tokens_reported or not self._settings.backlog_weight:
            return None
        saved = _saved_among(standing, matches)
        guesses = None if saved else self._guesses_among(query, standing, now)
        standing.weigh(saved or guesses or {}, query.prompt_tokens or 0)
        return guesses

    def _session_among(self, query: RouteQuery, standing: Standing, now: float) -> int | None:
        if query.session_id is None:
            return None
        worker = self._sessions.worker(query.namespace, query.session_id, now)
        return None if worker is None else standing.places.get(worker)

    def _guesses_among(self, query: RouteQuery, standing: Standing, now: float) -> dict[int, int]:
        places, guesses = standing.places, self._guesses(query, now)
        return {places[worker]: tokens for worker, tokens in guesses.items() if worker in places}

    def _least_loaded_among(self, best: Sequence[int], standing: Standing) -> int:
        equals = standing.due(best or None)
        if len(equals) == 1:
            return equals[0]
        return self._random.choice(sorted(equals, key=lambda place: standing.candidates[place].worker))


def _longest(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those with the best prefix, if any can reuse something. An unknown medium never beats a known one."""

    def quality(candidate: Candidate) -> tuple[int, ...]:
        media = candidate.by_medium
        known = (-media[Medium.OTHER], media[Medium.GPU], media[Medium.CPU])
        return trusted_reuse(candidate), candidate.matched, *known

    best = max(map(quality, candidates))
    return [candidate for candidate in candidates if quality(candidate) == best] if best[0] else []


def _guessed(free: Sequence[Candidate], guesses: dict[Worker, int]) -> list[Candidate]:
    longest = max((guesses.get(candidate.worker, 0) for candidate in free), default=0)
    return [candidate for candidate in free if longest and guesses.get(candidate.worker) == longest]


def _reason(query: RouteQuery, eligible: Sequence[Candidate], chosen: Candidate, session: Worker | None) -> Reason:
    longest = max(map(trusted_reuse, eligible))
    if query.tokens is None or all(candidate.trust is Trust.NONE for candidate in eligible):
        return "fallback"
    if len(eligible) == 1:
        return "only"
    if longest:
        return "prefix" if trusted_reuse(chosen) == longest else "load"
    return "affinity" if chosen.worker == session else "cold"


def _score(query: RouteQuery, candidate: Candidate, pressure: Pressure) -> float:
    share = trusted_reuse(candidate) / query.prompt_tokens if query.prompt_tokens else 0.0
    return share - 1 if pressure.held else share


def _saved_among(standing: Standing, matches: Mapping[Worker, WorkerMatch]) -> dict[int, int]:
    """By place, what candidates can reuse: those that can reuse something and are trusted."""
    saved: dict[int, int] = {}
    for worker, match in matches.items():
        place = standing.places.get(worker) if match.reusable else None
        if place is not None and standing.trusted[place]:
            saved[place] = match.reusable
    return saved


def _best_among(standing: Standing, matches: Mapping[Worker, WorkerMatch]) -> tuple[list[int], int]:
    """The places of those not held back that have the best prefix, and the longest prefix of any that is trusted."""
    places, trusted = standing.places, standing.trusted
    first, best, least, longest = None, list[int](), 1, 0
    for worker, matched, reusable, media in matches.values():
        if reusable < least:  # most are: the deepest come first
            continue
        place = places.get(worker)
        if place is None or not trusted[place]:
            continue
        longest = max(longest, reusable)
        if standing.held(place):
            continue
        quality = reusable, matched, -media[Medium.OTHER], media[Medium.GPU], media[Medium.CPU]
        if first is None or quality > first:
            first, best, least = quality, [place], reusable
        elif quality == first:
            best.append(place)
    return best, longest


def _guessed_among(standing: Standing, guesses: Mapping[int, int]) -> list[int]:
    free = {place: tokens for place, tokens in guesses.items() if not standing.held(place)}
    longest = max(free.values(), default=0)
    return [place for place, tokens in free.items() if tokens == longest]


def _reason_among(query: RouteQuery, standing: Standing, longest: int, reusable: int, by_session: bool) -> Reason:
    if query.tokens is None or True not in standing.trusted:
        return "fallback"
    if len(standing.candidates) == 1:
        return "only"
    if longest:
        return "prefix" if reusable == longest else "load"
    return "affinity" if by_session else "cold"
