"""The routing policies that the fleet benchmark compares: what each knows, and how it chooses an engine."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from random import Random
from typing import Final, Protocol

from benchmarks.fleet_engine import Job, SimulatedEngine
from benchmarks.fleet_trace import BLOCK_TOKENS, BLOCK_UNITS
from index.event import EventBatch
from index.index import Index
from index.pool import WorkerSpec
from index.prompt import Prompt, WorkerMatch
from index.worker import EngineKind, Trust, Worker
from router.candidate import UNKNOWN_LOAD, Candidate, Decision, RouteQuery, WorkerLoad
from router.route import Router
from router.settings import RouterSettings

MODEL: Final = "m"
NAMESPACE: Final = f"{MODEL}\0\0\0"
"""As the service writes it: no adapter, no salt, no extra key."""

NOTHING: Final = (0, 0, 0, 0)
EVENT_DELAY_S: Final = 0.01
"""From the end of a step to its events being in the index: publishing, one network hop, applying."""
LOAD_INTERVAL_S: Final = 1.0
"""How often kvroute reads the engines' loads: its default."""


class Policy(Protocol):
    """Chooses; is told of a request's first token and end, and is called every `LOAD_INTERVAL_S`."""

    def choose(self, job: Job, now: float) -> int:
        """The number of the engine that gets this request."""

    def first_token(self, job: Job, engine: int, now: float) -> None:
        """The request's first token has come."""

    def finished(self, job: Job, engine: int, now: float) -> None:
        """The request is over."""

    def tick(self, now: float) -> None:
        """Time to look at the engines."""


class Blind:
    """What a balancer knows without looking at prompts: how many requests it has under way where."""

    def __init__(self, engines: int) -> None:
        self._running = [0] * engines
        self._next = 0

    def first_token(self, job: Job, engine: int, now: float) -> None:
        """Not of interest."""

    def finished(self, job: Job, engine: int, now: float) -> None:
        """One less."""
        self._running[engine] -= 1

    def tick(self, now: float) -> None:
        """Not of interest."""

    def take_turn(self) -> int:
        """The next engine in turn."""
        self._next = (self._next + 1) % len(self._running)
        return self.sent(self._next)

    def take_least(self) -> int:
        """The engine with the fewest requests under way; among equals the next in turn."""
        size = len(self._running)
        self._next = min(((self._next + 1 + step) % size for step in range(size)), key=self._running.__getitem__)
        return self.sent(self._next)

    def sent(self, engine: int) -> int:
        """One more."""
        self._running[engine] += 1
        return engine

    @property
    def running(self) -> list[int]:
        """Requests under way per engine."""
        return self._running


class RoundRobin(Blind):
    """One after the other."""

    def choose(self, job: Job, now: float) -> int:
        """The next."""
        return self.take_turn()


class LeastLoaded(Blind):
    """The fewest requests under way."""

    def choose(self, job: Job, now: float) -> int:
        """The least loaded."""
        return self.take_least()


class TextPrefix(Blind):
    """An approximate prefix tree per engine, filled with what was sent there, as SGLang's gateway keeps it.

    Mirrors the rule and the defaults of its cache-aware policy: out of balance (by 64 requests and by half) the least
    loaded; else the engine with the longest prefix if that covers more than 0.3 of the prompt; else the least loaded.
    A tree holds as many tokens as the engine's cache, which the real one does not know, and forgets the least
    recently sent. `abs_threshold` and `share` let the rule be tuned.
    """

    def __init__(self, engines: int, capacity_tokens: int, abs_threshold: int = 64, share: float = 0.3) -> None:
        super().__init__(engines)
        self._trees: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(engines)]
        self._blocks = capacity_tokens // BLOCK_TOKENS
        self._abs_threshold, self._share = abs_threshold, share

    def choose(self, job: Job, now: float) -> int:
        """As the class says."""
        blocks = [unit for unit in job.arrival.prompt if unit % BLOCK_UNITS == 0]  # an id names its whole prefix
        found = [self._depth(tree, blocks) for tree in self._trees]
        engine = self._chosen(found, len(blocks))
        tree = self._trees[engine]
        for block in reversed(blocks):  # the leaf is forgotten before what leads to it
            tree[block] = None
            tree.move_to_end(block)
        while len(tree) > self._blocks:
            tree.popitem(last=False)
        return engine

    def _chosen(self, found: list[int], blocks: int) -> int:
        most, least = max(self.running), min(self.running)
        if most - least > self._abs_threshold and most > 1.5 * least:
            return self.take_least()
        longest = max(found)
        if longest <= self._share * blocks:
            return self.take_least()
        equals = [engine for engine, depth in enumerate(found) if depth == longest]
        return self.sent(min(equals, key=self.running.__getitem__))

    @staticmethod
    def _depth(tree: OrderedDict[int, None], blocks: list[int]) -> int:
        for depth, block in enumerate(blocks):
            if block not in tree:
                return depth
        return len(blocks)


class KVRoute:
    """kvroute itself: its index, fed by the engines' events, and its router. Lengths are in units.

    Between event and decision lies `EVENT_DELAY_S`; loads are as of the last tick; first tokens and ends are reported,
    as a gateway does through `/requests/{id}`.
    """

    def __init__(
        self, engines: Sequence[SimulatedEngine], settings: RouterSettings | None = None, seed: int = 0
    ) -> None:
        self.index = Index()
        self.router = Router(settings or RouterSettings(), Random(seed))
        self.promised: dict[Job, int] = {}
        self._engines = engines
        self._workers = [Worker(f"engine-{number}", 0) for number in range(len(engines))]
        self._numbers = {worker: number for number, worker in enumerate(self._workers)}
        self._loads = [UNKNOWN_LOAD] * len(engines)
        for worker in self._workers:
            self.index.add(worker, WorkerSpec(MODEL, EngineKind.VLLM))

    def choose(self, job: Job, now: float) -> int:
        """What POST /route does with token ids: match, decide, record."""
        self._apply_events(now)
        loads = dict(zip(self._workers, self._loads, strict=True))
        decision, query = decide(self.index, self.router, job.arrival.prompt, loads, now)
        self.router.record(str(job.number), decision, query, now)
        self.promised[job] = decision.reusable
        return self._numbers[decision.worker]

    def first_token(self, job: Job, engine: int, now: float) -> None:
        """Reported."""
        self.router.first_token(str(job.number), now)

    def finished(self, job: Job, engine: int, now: float) -> None:
        """Reported."""
        self.router.finished(str(job.number), now)

    def tick(self, now: float) -> None:
        """Read the loads."""
        self._loads = [
            WorkerLoad(float(one.running), float(one.waiting), None, sampled_at=now) for one in self._engines
        ]

    def _apply_events(self, now: float) -> None:
        for worker, engine in zip(self._workers, self._engines, strict=True):
            while engine.events and engine.events[0][0] + EVENT_DELAY_S <= now:
                at_s, events = engine.events.popleft()
                self.index.apply(worker, EventBatch(at_s, events, 0))


def decide(
    index: Index, router: Router, prompt: list[int], loads: Mapping[Worker, WorkerLoad], now: float
) -> tuple[Decision, RouteQuery]:
    """What POST /route decides for these token ids, and what it would record."""
    tokens = array("I", prompt).tobytes()
    matches = index.match(MODEL, Prompt(tokens), list(loads))
    candidates = [candidate_of(worker, matches.get(worker), load) for worker, load in loads.items()]
    query = RouteQuery(tokens, NAMESPACE, None, len(prompt))
    decision = router.decide(query, candidates, now)
    assert decision is not None
    return decision, query


def candidate_of(worker: Worker, match: WorkerMatch | None, load: WorkerLoad) -> Candidate:
    """The candidate that the service would make of a live, trusted worker."""
    return Candidate(
        worker=worker,
        url=f"http://{worker.instance}",
        weight=1.0,
        matched=match.matched if match else 0,
        reusable=match.reusable if match else 0,
        by_medium=match.by_medium if match else NOTHING,
        trust=Trust.EXACT,
        load=load,
        why=None,
    )
