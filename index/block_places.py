"""Where each vLLM worker's blocks lie: in the pool of its model and block size, joined with its first store."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from index.block_check import BlockCheck
from index.block_hash import HashIdentity
from index.block_index import BlockIndex
from index.block_worker import BlockWorker, HashDomain
from index.delta import Delta
from index.event import BlockStored
from index.native import Core
from index.orphans import Orphans
from index.pool import WorkerSpec
from index.worker import Worker


@dataclass(slots=True)
class Pool:
    """A block-hash index and the domain of those workers that share the fleet's NONE_HASH."""

    model: str
    index: BlockIndex
    fleet: HashDomain
    names: list[Worker] = field(default_factory=list)
    """By number; the last one that had it, where a number is free."""
    compared: tuple[Collection[Worker], bool] | None = None
    """What `is_within` was asked last, and the answer."""

    def rename(self, number: int, worker: Worker) -> None:
        """A number means this worker from now on; also one behind the last."""
        self.names[number : number + 1] = [worker]
        self.compared = None

    def is_within(self, some: Collection[Worker]) -> bool:
        """Whether `some` are known to hold all names. Mostly every request asks with the same frozenset."""
        if self.compared is None or self.compared[0] is not some:
            self.compared = some, isinstance(some, frozenset) and some.issuperset(self.names)
        return self.compared[1]


@dataclass(slots=True)
class Member:
    """A worker's place: its pool once a block size is known, and the identity its hashes were verified with."""

    spec: WorkerSpec
    pool: Pool | None = None
    blocks: BlockWorker | None = None
    identity: HashIdentity | None = None
    shared: bool = False
    check: BlockCheck | None = None


class BlockPlaces:
    """The pools by model and block size. A pool is there while a worker is in it."""

    def __init__(self, core: Core | None) -> None:
        self._core = core
        self.pools: dict[tuple[str, int], Pool] = {}

    def place(self, worker: Worker, member: Member, event: BlockStored, delta: Delta) -> BlockWorker | None:
        """The worker's state in the right pool: joined at its first store, moved when that showed a partial size.

        None for a store that does not tell its block size, before any that did. What a
        warm start must know goes into `delta`.
        """
        blocks = member.blocks
        if blocks is None:
            if event.block_size <= 0 or not event.tokens:
                return None
            blocks = self.enter(worker, member, event.block_size)
        if blocks.learn(event):
            delta.record(("B", event.group, event.kind, event.window, event.block_size))
        size = blocks.block_size
        if member.pool is not None and size is not None and size != member.pool.index.block_size:
            blocks = self._move(worker, member, blocks, size)
        if member.pool is not None:
            member.pool.index.learnt(blocks)
        return blocks

    def enter(self, worker: Worker, member: Member, block_size: int) -> BlockWorker:
        """Into the pool of a block size, holding nothing yet."""
        place = (member.spec.model, block_size)
        pool = self.pools.get(place)
        if pool is None:
            index = BlockIndex(block_size, self._core)
            pool = self.pools[place] = Pool(member.spec.model, index, index.holders.new_domain(pinned=True))
        member.pool = pool
        domain = pool.fleet if member.shared else None
        member.blocks = pool.index.add(member.spec.eagle, member.spec.match_unit, domain)
        number = member.blocks.number
        pool.rename(number, worker)
        return member.blocks

    def leave(self, member: Member) -> None:
        """Free all that the worker alone held."""
        if member.pool is None or member.blocks is None:
            return
        member.pool.index.drop(member.blocks)
        if not member.pool.index.workers:
            self.pools.pop((member.pool.model, member.pool.index.block_size), None)
        member.pool = member.blocks = None

    def _move(self, worker: Worker, member: Member, old: BlockWorker, block_size: int) -> BlockWorker:
        """To the pool of the true block size; what is held so far is kept by hash alone."""
        assert member.pool is not None
        held = member.pool.index.holders.slots(old)
        orphans, old.orphans = old.orphans, Orphans()
        self.leave(member)
        blocks = self.enter(worker, member, block_size)
        blocks.groups, blocks.partial_unit, blocks.plain, blocks.orphans, blocks.settled = (
            old.groups,
            old.partial_unit,
            old.plain,
            orphans,
            old.settled,
        )
        assert member.pool is not None
        member.pool.index.adopt_by_hash(blocks, held)
        return blocks
