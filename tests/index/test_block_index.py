"""The block-hash index against the brute-force oracle, over any history of any fleet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.block_hash import HashIdentity
from index.block_pools import BlockPools
from index.delta import Delta
from index.event import BlockRemoved, BlockStored, EngineHash
from index.pool import WorkerSpec
from index.worker import EngineKind, Medium, Worker
from tests.index.block_oracle import SIZE, WINDOW_GROUP, Content, Handle, Hashes, Oracle, Slot, prompt_of, stored

pytestmark = pytest.mark.usefixtures("core")

WORKERS = [Worker(f"w{number}", 0) for number in range(5)]
PRIVATE = {3, 4}  # their hashes mean something else than the fleet's
WINDOWED = {2, 4}  # full attention and a sliding window
EAGLE = {1}
IDENTITY = HashIdentity("sha256_cbor", "0")

contents = st.builds(
    Content,
    st.sampled_from([None] * 6 + ["a"]),
    st.sampled_from([None] * 6 + ["s"]),
    st.lists(st.sampled_from([(0, False)] * 6 + [(1, False), (0, True)]), min_size=1, max_size=4).map(tuple),
)
media = st.sampled_from([Medium.GPU, Medium.GPU, Medium.GPU, Medium.CPU, Medium.OTHER])
workers = st.integers(0, len(WORKERS) - 1)


@dataclass
class Fleet:
    """The index and the oracle, side by side."""

    pools: BlockPools = field(default_factory=BlockPools)
    oracle: Oracle = field(default_factory=lambda: Oracle(len(WORKERS)))
    hashes: Hashes = field(default_factory=Hashes)
    delta: Delta = field(default_factory=Delta)

    def __post_init__(self) -> None:
        for number, worker in enumerate(WORKERS):
            self.pools.add(worker, WorkerSpec("m", EngineKind.VLLM, eagle=number in EAGLE))

    def hash_of(self, worker: int, handle: Handle) -> EngineHash:
        return self.hashes.of(handle, worker if worker in PRIVATE else 0)

    def store(self, worker: int, content: Content, start: int, medium: Medium, variant: int = 0) -> None:
        start = min(start, len(content.blocks) - 1)
        salt = worker if worker in PRIVATE else 0
        self._send(worker, stored(self.hashes, salt, content, start, (0, medium), variant))
        handles = [(content.upto(at + 1), variant) for at in range(start, len(content.blocks))]
        self.oracle.store(worker, (0, medium), handles, (content.upto(start), variant) if start else None)

    def store_window(self, worker: int, content: Content, start: int, medium: Medium, keep: list[bool]) -> None:
        """Blocks of the window group, some left out; they are filed by hash unless all are there and parents known."""
        start = min(start, len(content.blocks) - 1)
        if worker not in WINDOWED or not self.pools.block_size(WORKERS[worker]):
            return
        slot = (WINDOW_GROUP, medium)
        keep = keep[: len(content.blocks) - start]
        self._send(worker, stored(self.hashes, worker if worker in PRIVATE else 0, content, start, slot, keep=keep))
        handles = [(content.upto(start + at + 1), 0) for at, kept in enumerate(keep) if kept]
        parent = (content.upto(start), 0) if start else None
        domain = self.oracle.holders[worker].domain
        if all(keep) and (parent is None or parent in domain.known):
            self.oracle.store(worker, slot, handles, parent)
            return
        for handle in handles:
            self.oracle.claim(worker, slot, handle)

    def lost_parent(self, worker: int, content: Content, medium: Medium, removed: list[Medium]) -> None:
        """Children come before their parent, and some of them leave again meanwhile."""
        for depth in range(len(content.blocks), 0, -1):
            self.store(worker, content.upto(depth), depth - 1, medium)
            for tier in removed:
                self.remove(worker, content, (0, tier))

    def placeholder(self, worker: int, content: Content, medium: Medium, size: int) -> None:
        self._send(worker, BlockStored([self.hash_of(worker, (content, 0))], None, b"", size, medium))
        if self.pools.block_size(WORKERS[worker]):
            self.oracle.claim(worker, (0, medium), (content, 0), placeholder=True)

    def partial(self, worker: int, number: int) -> None:
        """A partial entry (half a block), its parent never announced: it changes no whole block."""
        if self.pools.block_size(WORKERS[worker]) and worker not in WINDOWED - PRIVATE:
            self._send(worker, BlockStored([b"partial%d" % number], b"never", bytes(SIZE * 2), SIZE // 2))

    def remove_partial(self, worker: int, number: int) -> None:
        self.pools.drop(WORKERS[worker], BlockRemoved([b"partial%d" % number]), self.delta)

    def remove(self, worker: int, content: Content, slot: Slot, variant: int = 0) -> None:
        handle = (content, variant)
        self.pools.drop(WORKERS[worker], BlockRemoved([self.hash_of(worker, handle)], slot[1], slot[0]), self.delta)
        self.oracle.remove(worker, slot, handle)

    def clear(self, worker: int) -> None:
        self.pools.clear(WORKERS[worker])
        self.oracle.clear(worker)

    def restart(self, worker: int) -> None:
        self.pools.restart(WORKERS[worker])
        self.oracle.restart(worker)

    def identify(self, worker: int) -> None:
        if worker not in PRIVATE:
            self.pools.identify(WORKERS[worker], IDENTITY, shared=True)
            self.oracle.join(worker)

    def _send(self, worker: int, event: BlockStored) -> None:
        self.pools.store(WORKERS[worker], event, self.delta)

    def check(self, content: Content, tail: int) -> None:
        """Every worker's answer for one prompt."""
        prompt = prompt_of(content, tail)
        found = self.pools.match("m", prompt, WORKERS, None)
        for number, worker in enumerate(WORKERS):
            matched, split = self.oracle.matched(number, content)
            windowed = number in WINDOWED and self._layout(number) == 2
            reusable = self.oracle.reusable(number, content, prompt.length, windowed, number in EAGLE)
            if worker not in found:
                assert (matched, reusable) == (0, 0)
                continue
            match = found[worker]
            assert (match.matched, match.by_medium, match.reusable) == (matched, split, reusable), number

    def check_counts(self) -> None:
        for number, worker in enumerate(WORKERS):
            counts = [0, 0, 0, 0]
            for ((group, medium), _), count in self.oracle.holders[number].held.items():
                counts[medium] += bool(count)
                assert group in (0, WINDOW_GROUP)
            partials = sum(isinstance(block, bytes) for block in self._held(number))
            got = self.pools.counts(worker)
            assert (got[0] - partials, *got[1:]) == tuple(counts), number
            assert self.pools.parked(worker) == len(self.oracle.holders[number].parked)

    def _layout(self, number: int) -> int:
        blocks = self.pools._members[WORKERS[number]].blocks
        return len(blocks.groups) if blocks else 0

    def _held(self, number: int) -> list[EngineHash]:
        dump = self.pools.dump(WORKERS[number])
        return [block for slot in dump.slots for block in (*slot.hashes, *slot.keyless)] if dump else []

    def check_empty(self) -> None:
        """Nothing is left of workers that hold nothing."""
        for pool in self.pools._places.pools.values():
            assert pool.index.holders.entries == 0
            assert pool.index.size_bytes == 0
            assert not any(worker.orphans for worker in pool.index.workers.values())


Step = Callable[[Fleet], None]


def _step(name: str, *arguments: st.SearchStrategy[object]) -> st.SearchStrategy[Step]:
    return st.tuples(*arguments).map(lambda values: lambda fleet: getattr(fleet, name)(*values))


slots = st.tuples(st.sampled_from([0, 0, 0, WINDOW_GROUP]), media)
steps = st.one_of(
    _step("store", workers, contents, st.just(0), media),
    _step("store", workers, contents, st.integers(0, 3), media, st.sampled_from([0, 0, 1])),
    _step("store_window", workers, contents, st.integers(0, 3), media, st.lists(st.booleans(), min_size=4, max_size=4)),
    _step("store_window", st.sampled_from(sorted(WINDOWED)), contents, st.just(0), media, st.just([True] * 4)),
    _step("lost_parent", workers, contents, media, st.lists(media, max_size=2)),
    _step("placeholder", workers, contents, media, st.sampled_from([0, SIZE])),
    _step("remove", workers, contents, slots, st.sampled_from([0, 0, 1])),
    _step("remove", workers, contents, slots),
    _step("partial", workers, st.integers(0, 2)),
    _step("remove_partial", workers, st.integers(0, 2)),
    _step("clear", workers),
    _step("restart", workers),
    _step("identify", workers),
)
histories = st.one_of(st.lists(steps, max_size=40), st.lists(steps, min_size=30, max_size=60))


@settings(max_examples=300, deadline=None)
@given(histories, st.lists(st.tuples(contents, st.integers(0, 3)), min_size=1, max_size=8))
def test_matches_equal_the_oracle_after_any_history(history: list[Step], prompts: list[tuple[Content, int]]) -> None:
    fleet = Fleet()
    for step in history:
        step(fleet)
        fleet.check(*prompts[0])
    for content, tail in prompts:
        fleet.check(content, tail)
    fleet.check_counts()


@settings(max_examples=150, deadline=None)
@given(histories, st.permutations(range(len(WORKERS))))
def test_nothing_is_left_when_every_worker_is_cleared_or_removed(history: list[Step], order: list[int]) -> None:
    fleet = Fleet()
    for step in history:
        step(fleet)
    for worker in order:
        fleet.clear(worker)
    fleet.check_empty()
    for step in history:
        step(fleet)
    for worker in order:
        fleet.pools.remove(WORKERS[worker])
    assert list(fleet.pools.stats()) == []
    assert not fleet.pools._places.pools


@settings(max_examples=150, deadline=None)
@given(histories)
def test_removing_every_held_copy_leaves_nothing(history: list[Step]) -> None:
    fleet = Fleet()
    for step in history:
        step(fleet)
    for worker in WORKERS:
        blocks = fleet.pools._members[worker].blocks
        if blocks is None:
            continue
        blocks.orphans.clear()
        dump = fleet.pools.dump(worker)
        for slot in dump.slots if dump else ():
            for block in (*slot.hashes, *slot.keyless):
                gone = BlockRemoved([block] * slot.counts.get(block, 1), Medium(slot.medium), slot.group)
                fleet.pools.drop(worker, gone, fleet.delta)
    fleet.check_empty()
