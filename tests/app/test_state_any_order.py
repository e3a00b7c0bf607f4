"""Batches, writes, failures, crashes in any order: what is stored is sound at any moment, and whole in the end."""

from __future__ import annotations

import asyncio

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.state_limits import WriterLimits
from app.state_writer import ADOPT_AGAIN_S
from index.worker import Trust
from store.memory_state import MemoryState
from store.state import StateError
from tests.support.state_world import WORKER, Loaded, Replica, World, load_fresh, oracle

SHORT = WriterLimits(snapshot_batches=3)

ACTS = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 4)),
    st.tuples(st.just("take"), st.integers(0, 1), st.integers(1, 4)),
    st.tuples(st.just("write"), st.integers(0, 1)),
    st.tuples(st.just("tell"), st.integers(0, 1), st.sampled_from(["done", "done", "lost", "unanswered"])),
    st.tuples(st.just("crash"), st.integers(0, 1), st.integers(0, 3)),
    st.tuples(st.just("gap"), st.integers(0, 1)),
    st.tuples(st.just("restart")),
    st.tuples(st.just("forget")),
    st.tuples(st.just("time"), st.sampled_from([0.3, 5.0, 31.0])),
)


class AnyOrder:
    """Two replicas whose calls to the store are held back, reordered between them, lost, or cut off by a crash."""

    def __init__(self, seed: int) -> None:
        contents = MemoryState()
        self.world = World(lambda: MemoryState(contents), SHORT, seed)
        self.replicas: list[Replica] = []
        self.tasks: list[asyncio.Task[None] | None] = [None, None]

    async def start(self) -> None:
        self.replicas = [await self.world.replica(), await self.world.replica()]
        for replica in self.replicas:
            replica.gate.free = False

    async def act(self, name: str, *values: object) -> None:
        match name, values:
            case "publish", (int(count),):
                self.world.engine.publish(count)
            case "take", (int(which), int(count)):
                self.replicas[which].take(count)
            case "write", (int(which),):
                await self._write(which)
            case "tell", (int(which), outcome):
                self.replicas[which].gate.tell(outcome)  # type: ignore[arg-type]
            case "crash", (int(which), int(lost)):
                await self._crash(which, lost)
            case "gap", (int(which),):
                if self.replicas[which].process == len(self.world.engine.processes) - 1:
                    self.replicas[which].lose(len(self.world.engine.payloads))
            case "restart", ():
                self.world.engine.restart()
            case "forget", ():
                await self.world.own.forget(WORKER)
            case "time", (float(seconds),):
                self.world.now += seconds
        for _ in range(3):
            await asyncio.sleep(0)

    async def is_sound(self) -> None:
        """What a fresh replica would load is what the engine's batches give. Later origins may miss parked blocks."""
        loaded = await load_fresh(self.world.own)
        if loaded is not None:
            expected = oracle(self.world.engine, loaded)
            assert loaded.held <= expected
            if loaded.trust is Trust.EXACT:
                assert loaded.held == expected
            assert loaded.trust is Trust.EXACT or loaded.origin_seq > 0

    async def settle(self) -> Loaded:
        """Everything arrives, the store is well, time passes."""
        for replica in self.replicas:
            replica.gate.free = True
        for _ in range(6):
            self.world.engine.publish(1)
            self.world.now += ADOPT_AGAIN_S
            for which, replica in enumerate(self.replicas):
                replica.take_all()
                await self._write(which)
                while (task := self.tasks[which]) is not None and not task.done():
                    replica.gate.tell("done")
                    await asyncio.sleep(0)
                await self._adopt(replica)
        loaded = await load_fresh(self.world.own)
        assert loaded is not None
        return loaded

    async def close(self) -> None:
        for task in self.tasks:
            if task is not None:
                task.cancel()
        await asyncio.gather(*(task for task in self.tasks if task is not None), return_exceptions=True)

    async def _write(self, which: int) -> None:
        task = self.tasks[which]
        if task is None or task.done():
            if task is not None and (error := task.exception()) is not None:
                assert isinstance(error, StateError)
            await self._adopt(self.replicas[which])
            self.tasks[which] = asyncio.create_task(self.replicas[which].writer.write())

    async def _adopt(self, replica: Replica) -> None:
        if replica.adoptions:
            await replica.start()

    async def _crash(self, which: int, lost: int) -> None:
        """The process ends; a new one starts from the store. The engine still has all batches but the first `lost`."""
        task = self.tasks[which]
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self.tasks[which] = None
        first = min(lost, len(self.world.engine.payloads))
        self.replicas[which] = await self.world.replica(first_seq=first)
        self.replicas[which].gate.free = False


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1000), acts=st.lists(ACTS, min_size=5, max_size=60))
def test_the_store_is_sound_at_any_moment_and_becomes_whole(seed: int, acts: list[tuple[str, object]]) -> None:
    async def scenario() -> None:
        order = AnyOrder(seed)
        await order.start()
        try:
            for act in acts:
                await order.act(*act)
                await order.is_sound()
            loaded = await order.settle()
            await order.is_sound()
            engine = order.world.engine
            assert loaded.seq == len(engine.payloads) - 1
            for replica in order.replicas:
                assert loaded.held >= replica.held()
        finally:
            await order.close()

    asyncio.run(scenario())
