"""Candidates and requests for the router's tests."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from index.worker import Trust, Worker
from router.candidate import Candidate, Decision, RouteQuery, WorkerLoad
from router.route import Router

IDLE = WorkerLoad(0.0, 0.0, 0.0)


def worker(name: str) -> Worker:
    return Worker(name, 0)


def candidate(
    name: str,
    *,
    reusable: int = 0,
    matched: int | None = None,
    media: tuple[int, int, int, int] | None = None,
    load: WorkerLoad = IDLE,
    weight: float = 1.0,
    trust: Trust = Trust.EXACT,
    why: str | None = None,
) -> Candidate:
    depth = reusable if matched is None else matched
    spread = (depth, 0, 0, 0) if media is None else media
    return Candidate(worker(name), f"http://{name}", weight, depth, reusable, spread, trust, load, why)


def busy(running: float | None, waiting: float | None = 0.0, sampled_at: float | None = None) -> WorkerLoad:
    return WorkerLoad(running, waiting, None, sampled_at)


def query(tokens: Iterable[int] | None = range(1000), session: str | None = None, namespace: str = "m") -> RouteQuery:
    if tokens is None:
        return RouteQuery(None, namespace, session, None)
    packed = array("I", tokens)
    return RouteQuery(packed.tobytes(), namespace, session, len(packed))


def unique(number: int, length: int = 40) -> RouteQuery:
    return query(range(number * 10_000, number * 10_000 + length))


def decide(router: Router, candidates: Sequence[Candidate], request: RouteQuery, now: float = 0.0) -> Decision:
    decision = router.decide(request, candidates, now)
    assert decision is not None
    return decision


def run(
    router: Router,
    candidates: Callable[[float], Sequence[Candidate]] | Sequence[Candidate],
    requests: Iterable[RouteQuery],
    *,
    start: float = 0.0,
    every_s: float = 0.01,
    finish: bool = False,
) -> Counter[str]:
    """Route requests one after the other; how many went to each instance."""
    picks: Counter[str] = Counter()
    for number, request in enumerate(requests):
        now = start + number * every_s
        decision = decide(router, candidates(now) if callable(candidates) else candidates, request, now)
        router.record(f"{start}-{number}", decision, request, now)
        if finish:
            assert router.finished(f"{start}-{number}", now)
        picks[decision.worker.instance] += 1
    return picks
