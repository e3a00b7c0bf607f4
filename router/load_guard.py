"""How busy each worker is, as far as known, and which are too busy for a prefix to be worth the queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf, isfinite, isnan
from typing import TYPE_CHECKING, NamedTuple

from index.worker import Trust, Worker
from router.assignment_book import NOTHING
from router.assignments import MARGIN_S, Assignments
from router.backlog import Queue, outweighed
from router.candidate import Candidate, WorkerLoad
from router.settings import RouterSettings

if TYPE_CHECKING:
    from router.assignment_book import Book

_LEAST_WEIGHT = 1e-6
NO_GUESSES: Mapping[Worker, int] = {}


class Pressure(NamedTuple):
    """A worker's load per weight, in requests: `rank` for comparing, `held` if the load guard holds the worker back.

    `backlog` are the prompt tokens that it has to compute first, per weight; zero where first tokens are not reported.
    """

    rank: float
    held: bool
    backlog: float = 0.0


def weight_of(candidate: Candidate) -> float:
    """The candidate's weight, made safe to divide by."""
    return candidate.weight if candidate.weight > _LEAST_WEIGHT else _LEAST_WEIGHT


def pressures(
    candidates: Sequence[Candidate],
    assignments: Assignments,
    settings: RouterSettings,
    now: float,
    *,
    prompt_tokens: int = 0,
    guesses: Mapping[Worker, int] = NO_GUESSES,
) -> dict[Worker, Pressure]:
    """Every candidate's pressure; at least one of them is not held back.

    Load = running + waiting of the engine's report (a waiting request counts like a running one) + the cost of own
    requests assigned since. An engine without a report counts as the average of those that have one, or as its own
    unfinished requests if those are more and ends are reported: unknown is never the best. Where no engine reports,
    own requests of the last `load_window_s` are compared. The guard acts only on what is known: a report, or own
    unfinished requests when the gateway reports their ends.

    Where first tokens are reported too, a worker is also held back whose queue of prompts outweighs its prefix
    (`router.backlog`) of a request of `prompt_tokens`. `guesses` are tokens that a worker will probably hold by then.
    """
    assignments.advance(now)
    sights = [sight_of(candidate, assignments, settings, now) for candidate in candidates]
    average = average_report(sights)
    ranks = [rank_of(sight, average) for sight in sights]
    limit = guard_limit(min(ranks), settings)
    pressures = [Pressure(rank, held=sight.known > limit) for sight, rank in zip(sights, ranks, strict=True)]
    if assignments.first_tokens_reported and settings.backlog_weight:
        saved = [max(trusted_reuse(one), guesses.get(one.worker, 0)) for one in candidates]
        queues = [Queue(sight.backlog, tokens) for sight, tokens in zip(sights, saved, strict=True)]
        pressures = _with_queues(pressures, queues, prompt_tokens, settings.backlog_weight)
    return {candidate.worker: one for candidate, one in zip(candidates, pressures, strict=True)}


def trusted_reuse(candidate: Candidate) -> int:
    """What can be reused, in tokens: nothing of a worker whose events are not trusted."""
    return 0 if candidate.trust is Trust.NONE else candidate.reusable


def _with_queues(
    pressures: Sequence[Pressure], queues: Sequence[Queue], prompt_tokens: int, weight: float
) -> list[Pressure]:
    """Judged among those that the count of requests does not hold back."""
    free = [queue for queue, one in zip(queues, pressures, strict=True) if not one.held]
    loses = dict(zip(free, outweighed(free, prompt_tokens, weight), strict=True))
    return [
        one._replace(held=one.held or loses[queue], backlog=queue.backlog)
        for queue, one in zip(queues, pressures, strict=True)
    ]


class Told(NamedTuple):
    """What an engine reported last, and when (`time.monotonic` seconds), if it did; and the worker's weight.

    A time that is NaN is none, in both cores.
    """

    requests: float | None
    sampled_at: float | None
    weight: float


class Sight(NamedTuple):
    """What is seen of a worker's load, per weight: the engine's report, own unfinished and own recent requests.

    None: not reported. `backlog` are the prompt tokens of own requests without a first token. It stays as it
    is up to `until`, unless something is reported.
    """

    report: float | None
    running: float | None
    recent: float
    backlog: float
    until: float

    @property
    def known(self) -> float:
        """The load that rests on facts, zero when none does."""
        return self.report if self.report is not None else self.running or 0.0


def sight_of(candidate: Candidate, assignments: Assignments, settings: RouterSettings, now: float) -> Sight:
    """What is seen of one candidate's load now."""
    weight, load = weight_of(candidate), candidate.load
    book = assignments.book(candidate.worker)
    return look(
        Told(counted(load), load.sampled_at, weight), book, settings, now, ends_reported=assignments.ends_reported
    )


def look(told: Told, book: Book | None, settings: RouterSettings, now: float, *, ends_reported: bool) -> Sight:
    """What is seen of a worker now, by what its engine told last and by its assigned requests.

    The native core has the same: `StandingTable::look`.
    """
    requests, sampled_at, weight = told
    if sampled_at is not None and isnan(sampled_at):
        sampled_at = None
    if sampled_at is not None and now - sampled_at > settings.load_stale_s:
        requests = None
    windowed = requests is None or sampled_at is None
    since = now - settings.load_window_s if windowed or sampled_at is None else sampled_at
    cost, count, prefill, oldest, oldest_new, oldest_prefill = NOTHING if book is None else book.seen(now, since)
    times = [oldest + settings.assignment_ttl_s, oldest_prefill + settings.prefill_ttl_s]
    if windowed:
        times.append(oldest_new + settings.load_window_s)
    if sampled_at is not None:
        times.append(sampled_at + settings.load_stale_s)
    report = None if requests is None else (requests + cost) / weight
    running = count / weight if ends_reported else None
    return Sight(report, running, cost / weight, prefill / weight, next_time(times, now))


def next_time(times: Iterable[float], now: float) -> float:
    """The first of `times` that is not surely over, less a margin for rounding. Infinite when there is none.

    Within the margin around a time the numbers are looked at for every request.
    """
    first = inf
    for time in times:
        if now <= time + MARGIN_S and time - MARGIN_S < first:
            first = time - MARGIN_S
    return first


def counted(load: WorkerLoad) -> float | None:
    """The requests an engine's report counts, however old it is; None when it says nothing that can be used."""
    if load.running is None or load.waiting is None:
        return None
    total = load.running + load.waiting
    return total if isfinite(total) and load.running >= 0 and load.waiting >= 0 else None


def guard_limit(least_rank: float, settings: RouterSettings) -> float:
    """The known load per weight above which a worker is held back."""
    return max(settings.guard_floor_requests, settings.guard_multiple * (least_rank + 1))


def average_report(sights: Iterable[Sight]) -> float | None:
    """What the engines report on average; None where none does. Added up in order, as the native core does."""
    total, count = 0.0, 0
    for sight in sights:
        if sight.report is not None:
            total += sight.report
            count += 1
    return total / count if count else None


def rank_of(sight: Sight, average: float | None) -> float:
    """A load for comparing. `average` is that of the engines that report, None where none does."""
    if sight.report is not None:
        return sight.report
    return max(sight.recent if average is None else average, sight.running or 0.0)
