"""What the block-hash index keeps its holdings in: the interface of both cores, and which one a new pool gets."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from typing import Protocol

from index import native
from index.block_holders import BlockHolders
from index.block_worker import BlockWorker, HashDomain
from index.event import EngineHash
from index.filed import Filed, Run, Slot, SlotHoldings, Walked
from index.native_holders import NativeHolders
from index.prompt import Prompt, WorkerMatch
from index.request_key import RequestKey
from index.worker import Worker


class Holders(Protocol):
    """The holdings of one pool, counted per (worker, group, medium, hash). Every call leaves it consistent."""

    def new_domain(self, pinned: bool) -> HashDomain:
        """A hash domain. One that is not pinned goes with its last worker."""

    def enter(self, worker: BlockWorker) -> None:
        """Take in a worker, in its domain."""

    def leave(self, worker: BlockWorker) -> None:
        """Let a worker go that holds nothing any more."""

    def move(self, worker: BlockWorker, domain: HashDomain) -> bool:
        """Take a worker's hashes into another domain; False, and no change, when a hash means something else there."""

    def learnt(self, worker: BlockWorker) -> None:
        """The worker's group layout may have changed."""

    def claim(self, worker: BlockWorker, slot: Slot, block: EngineHash) -> bool | None:
        """One more copy of a block, by its hash. True: a new holding; None: no room for one without a known meaning."""

    def file_run(self, worker: BlockWorker, slot: Slot, run: Run) -> Filed:
        """Blocks whose hashes pair with token slices, below a known key. Stops at a hash that means something else."""

    def hold(self, worker: BlockWorker, slot: Slot, hashes: list[EngineHash], keys: bytes) -> None:
        """One more copy of each block, their keys told; a hash that means something else in the domain is left out."""

    def recount(self, worker: BlockWorker, slot: Slot, counts: dict[EngineHash, int]) -> None:
        """Set the counts of hashes that are held."""

    def remove(self, worker: BlockWorker, slot: Slot, hashes: list[EngineHash]) -> tuple[int, Sequence[EngineHash]]:
        """Take one copy of each block away: the holdings that vanished, and the hashes that are not held."""

    def release_all(self, worker: BlockWorker) -> int:
        """Forget all a worker holds, at a cost proportional to it. Returns the number of holdings."""

    def keys_of(self, worker: BlockWorker, hashes: list[EngineHash]) -> list[RequestKey | None]:
        """What hashes mean in the worker's domain; None where that is not known."""

    def slots(self, worker: BlockWorker) -> list[SlotHoldings]:
        """Everything a worker holds, in no order that means anything."""

    def counts(self, worker: BlockWorker) -> tuple[int, int, int, int]:
        """Held blocks per medium (gpu, cpu, disk, other), each hash once per group."""

    def holds_hash(self, worker: BlockWorker, group: int, block: EngineHash) -> bool:
        """Whether a worker holds a hash in a group, in any medium."""

    def holds_key(self, worker: BlockWorker, group: int, key: RequestKey) -> bool:
        """Whether a worker holds a request key in a group, in any medium."""

    def matches(
        self, prompt: Prompt, names: list[Worker], eagles: Set[int], only: Collection[Worker] | None
    ) -> dict[Worker, WorkerMatch]:
        """The matches of those plain workers of `only` (None: of all) that hold anything, the deepest first.

        `names`: the workers by number; `eagles`: those of them that drop a block of what they find.
        """

    def walk_one(self, prompt: Prompt, worker: BlockWorker, group: int) -> Sequence[Walked]:
        """Leading blocks of one worker in one group."""

    @property
    def distinct(self) -> int:
        """Different request keys that are held."""

    @property
    def entries(self) -> int:
        """Entries of all tables: 0 when nothing is held."""

    @property
    def size_bytes(self) -> int:
        """Memory in bytes, estimated from the tables' sizes. 0 when nothing is held."""


def new_holders(block_size: int, core: native.Core | None = None) -> Holders:
    """Holders for a pool of this block size, in the core that serves unless another is given."""
    module = (core or native.CORE).module
    return BlockHolders(block_size) if module is None else NativeHolders(module, block_size)
