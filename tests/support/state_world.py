"""An engine, replicas that follow it, and their state store, without sockets: everything happens when it is told to.

Batches are real payloads, decoded and applied by the real ingest. What a replica is told of its stream (`Clear`,
`Resumed`, `Batch`) is what a listener would say. Oracle: the engine's own payloads applied to a fresh index.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import msgspec
from xxhash import xxh3_64_digest

from app.fleet import Fleet
from app.ingest import WorkerIngest
from app.instance import Instance, TrackedWorker
from app.instance_settings import InstanceSettings
from app.metrics import Metrics
from app.state_limits import WriterLimits
from app.state_writer import StateWriter
from app.warm_start import Restored, WarmStart
from engine.stream import Batch, Clear, Resumed, Signal
from engine.wire import decode
from index.index import Index
from index.pool import WorkerSpec
from index.worker import EngineKind, Trust, Worker
from store.state import Change, Entry, Offer, RegisteredInstance, Snapshot, StateError, StateStore, Stored
from tests.support.holdings import Holding, holdings

WORKER = Worker("one", 0)
T0 = 1_700_000_000.0
T = TypeVar("T")
Stores = Callable[[], StateStore]
"""Each call is another replica's store over the same contents."""
NEVER = WriterLimits()
Outcome = Literal["done", "lost", "unanswered"]
"""Of a call to the store: it went well; it never got there; it was done and the answer was lost."""


@dataclass
class Engine:
    """Its processes' payloads; the last is the one that runs. Every block is known by its hash, parents come first."""

    seed: int = 0
    processes: list[list[bytes]] = field(default_factory=lambda: [[]])
    clock_s: float = T0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._held: dict[int, int | None] = {}
        self._next_hash = 1

    @property
    def payloads(self) -> list[bytes]:
        """Those of the running process, by number."""
        return self.processes[-1]

    def restart(self) -> None:
        """A new process."""
        self.processes.append([])
        self._held.clear()
        self.clock_s += 1.0

    def publish(self, count: int = 1) -> None:
        """More batches of stores, removals and now and then a clear."""
        for _ in range(count):
            self.clock_s += 0.01
            events = [self._event() for _ in range(self._random.randint(0, 3))]
            self.payloads.append(msgspec.msgpack.encode([self.clock_s, events, 0]))

    def _event(self) -> dict[str, object]:
        draw = self._random.random()
        if draw < 0.02:
            self._held.clear()
            return {"type": "AllBlocksCleared"}
        leaves = [block for block in self._held if block not in self._held.values()]
        if draw < 0.3 and leaves:
            block = self._random.choice(leaves)
            del self._held[block]
            return {"type": "BlockRemoved", "block_hashes": [block], "medium": "GPU"}
        return self._store()

    def _store(self) -> dict[str, object]:
        parent = self._random.choice([None, *self._held])
        first, size = self._next_hash, self._random.randint(1, 3)
        self._next_hash += size
        above = parent
        for block in range(first, first + size):
            self._held[block], above = above, block
        return {
            "type": "BlockStored",
            "block_hashes": list(range(first, first + size)),
            "parent_block_hash": parent,
            "token_ids": [token for block in range(first, first + size) for token in (block, 0, 0, 0)],
            "block_size": 4,
            "medium": "GPU",
        }


class Gate:
    """A store whose calls wait until they are told how they end. Without anybody telling, they go well."""

    def __init__(self, inner: StateStore) -> None:
        self.inner = inner
        self.free = True
        self.waiting: deque[asyncio.Future[Outcome]] = deque()
        self._arrived = asyncio.Event()

    def tell(self, outcome: Outcome) -> bool:
        """End the call that waits longest. False: none waits."""
        if not self.waiting:
            return False
        self.waiting.popleft().set_result(outcome)
        return True

    async def arrival(self) -> None:
        """Until a call waits."""
        while not self.waiting:
            self._arrived.clear()
            await self._arrived.wait()

    async def end_next(self, outcome: Outcome) -> None:
        """Wait for a call, and end it so."""
        await self.arrival()
        self.tell(outcome)

    async def _through(self, op: str, call: Callable[[], Awaitable[T]]) -> T:
        outcome: Outcome = "done"
        if not self.free:
            future = asyncio.get_running_loop().create_future()
            self.waiting.append(future)
            self._arrived.set()
            outcome = await future
        if outcome == "lost":
            raise StateError(op, "connection")
        answer = await call()
        if outcome == "unanswered":
            raise StateError(op, "timeout")
        return answer

    async def open(self) -> None:
        await self.inner.open()

    async def close(self) -> None:
        await self.inner.close()

    async def load(self, worker: Worker) -> Stored | None:
        return await self._through("load", lambda: self.inner.load(worker))

    async def append(self, entries: Sequence[Entry]) -> list[bool | None]:
        return await self._through("append", lambda: self.inner.append(entries))

    async def offer(self, snapshot: Snapshot) -> Offer:
        return await self._through("offer", lambda: self.inner.offer(snapshot))

    async def log_length(self, worker: Worker) -> int:
        return await self._through("log_length", lambda: self.inner.log_length(worker))

    async def forget(self, worker: Worker) -> None:
        await self._through("forget", lambda: self.inner.forget(worker))

    async def touch(self, workers: Iterable[Worker]) -> None:
        await self._through("touch", lambda: self.inner.touch(workers))

    async def workers(self) -> list[Worker]:
        return await self.inner.workers()

    async def instances(self) -> dict[str, RegisteredInstance]:
        return await self.inner.instances()

    async def put_instance(self, instance: RegisteredInstance) -> None:
        await self.inner.put_instance(instance)

    async def delete_instance(self, id: str) -> None:
        await self.inner.delete_instance(id)

    async def set_draining(self, id: str, draining: bool) -> None:
        await self.inner.set_draining(id, draining)

    def changes(self) -> AsyncGenerator[Change, None]:
        return self.inner.changes()


class Replica:
    """One router: index, writer, and the ingest of the engine's stream, of which it sees what `take` gives it."""

    def __init__(self, engine: Engine, store: StateStore, now: Callable[[], float], limits: WriterLimits) -> None:
        self.engine = engine
        self.gate = Gate(store)
        self.instance, self.tracked, self.index = holder()
        self.metrics = Metrics()
        self.writer = StateWriter(self.gate, self.index, self.metrics, limits, now)
        self.adoptions: list[Worker] = []
        self.writer.adopt = self.adoptions.append
        self.next_seq = 0
        self.process = -1

    async def start(self, first_seq: int = 0) -> None:
        """Load what is stored; go on from there, or from the first batch that the engine still has."""
        self.adoptions.clear()
        self.writer.began(WORKER)
        start = WarmStart(self.index, self.instance, self.tracked, None)
        try:
            restored = await start.load(self.gate.inner)
        except StateError:
            restored = None
        self._follow(restored)
        self.process = len(self.engine.processes) - 1
        if restored is not None and self._proves(restored):
            self._ingest.take(deque([Resumed()]))
            self.next_seq = restored.position.next_seq
            if self.next_seq < first_seq:
                self.lose(first_seq)
        else:
            self._clear("start" if restored is None else "reconnect", first_seq)

    def take(self, count: int = 1) -> None:
        """Apply the next batches, after a `Clear` when the engine was restarted."""
        if self.process != len(self.engine.processes) - 1:
            self.process = len(self.engine.processes) - 1
            self._clear("restart", 0)
        for payload in self.engine.payloads[self.next_seq : self.next_seq + count]:
            self._ingest.take(deque([Batch(self.next_seq, payload, False)]))
            self.next_seq += 1

    def take_all(self) -> None:
        """Everything there is."""
        self.take(len(self.engine.payloads))

    def lose(self, next_seq: int) -> None:
        """Batches before `next_seq` cannot be had any more."""
        self._clear("gap", next_seq)

    def tell(self, signal: Signal) -> None:
        """Anything a listener could say."""
        self._ingest.take(deque([signal]))

    def held(self) -> Counter[Holding]:
        """What it holds."""
        return holdings(self.index.dump(WORKER))

    def _clear(self, reason: str, next_seq: int) -> None:
        self.next_seq = next_seq
        self._ingest.take(deque([Clear(reason, Trust.EXACT if next_seq == 0 else Trust.PARTIAL)]))

    def _follow(self, restored: Restored | None) -> None:
        self._ingest = WorkerIngest(
            self.instance,
            self.tracked,
            self.index,
            self.metrics,
            check=None,
            look_again=lambda: None,
            writer=self.writer,
            restored=restored,
        )

    def _proves(self, restored: Restored) -> bool:
        position = restored.position
        last = self.engine.payloads[position.next_seq - 1 : position.next_seq]
        return [xxh3_64_digest(payload) for payload in last] == [position.digest]


def holder(model: str = "m") -> tuple[Instance, TrackedWorker, Index]:
    """An instance with one worker, and an index that knows it."""
    settings = InstanceSettings.model_validate(
        {"id": WORKER.instance, "engine": "vllm", "model": model, "url": "http://one"}
    )
    instance, index = Fleet().add(settings), Index()
    index.add(WORKER, WorkerSpec(model, EngineKind.VLLM))
    return instance, instance.workers[0], index


@dataclass(frozen=True)
class Loaded:
    """What a fresh replica makes of the store: what it holds, how far, with which trust, and since when."""

    held: Counter[Holding]
    seq: int
    origin_seq: int
    origin_ts_ms: int
    trust: Trust


async def load_fresh(store: StateStore, worker: Worker = WORKER) -> Loaded | None:
    """Through the real warm start, into an index of its own."""
    assert worker == WORKER
    instance, tracked, index = holder()
    restored = await WarmStart(index, instance, tracked, None).load(store)
    if restored is None:
        return None
    lineage = restored.followed.lineage
    assert lineage is not None
    held = holdings(index.dump(WORKER))
    return Loaded(held, restored.followed.seq, lineage.origin_seq, lineage.origin_ts_ms, restored.position.trust)


def oracle(engine: Engine, loaded: Loaded) -> Counter[Holding]:
    """What a worker holds that applied just the batches that the loaded state is of."""
    for payloads in engine.processes:
        origin = payloads[loaded.origin_seq : loaded.origin_seq + 1]
        if origin and int(decode(origin[0], EngineKind.VLLM).ts * 1000) == loaded.origin_ts_ms:
            index = holder()[2]
            for payload in payloads[loaded.origin_seq : loaded.seq + 1]:
                index.apply(WORKER, decode(payload, EngineKind.VLLM))
            return holdings(index.dump(WORKER))
    raise AssertionError(f"no process of the engine has the origin of {loaded}")


class World:
    """Replicas over one store, with a clock that moves when it is told to."""

    def __init__(self, stores: Stores, limits: WriterLimits = NEVER, seed: int = 0) -> None:
        self.stores, self.limits = stores, limits
        self.engine = Engine(seed)
        self.now = 0.0
        self.own = stores()

    async def replica(self, first_seq: int = 0) -> Replica:
        """One that has started; nothing before `first_seq` can be had from the engine."""
        replica = Replica(self.engine, self.stores(), lambda: self.now, self.limits)
        await replica.start(first_seq)
        return replica

    async def loaded(self) -> Loaded:
        """What is in the store."""
        loaded = await load_fresh(self.own)
        assert loaded is not None
        return loaded

    async def stored(self) -> Loaded:
        """What is in the store, checked against the oracle."""
        loaded = await self.loaded()
        assert loaded.held == oracle(self.engine, loaded)
        return loaded
