"""All vLLM workers, each in the pool of its model and block size, which its first stores tell."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from index.block_check import BlockCheck
from index.block_dump import dump_blocks, record_store, redo_blocks, restore_blocks
from index.block_hash import HashIdentity
from index.block_match import match_grouped
from index.block_places import BlockPlaces, Member
from index.block_worker import BlockWorker
from index.delta import NOT_APPLIED, AppliedPayload, AppliedRun, Delta
from index.dump import BlockDump, Operation
from index.engine_chain import EngineChain
from index.event import BlockRemoved, BlockStored
from index.native import Core
from index.native_holders import NativeHolders
from index.pool import PoolStats, WorkerSpec
from index.prompt import Prompt, WorkerMatch
from index.worker import EngineKind, Worker


class BlockPools:
    """The vLLM side of the index."""

    def __init__(self, core: Core | None = None) -> None:
        self._members: dict[Worker, Member] = {}
        self._places = BlockPlaces(core)

    def __contains__(self, worker: Worker) -> bool:
        return worker in self._members

    def add(self, worker: Worker, spec: WorkerSpec) -> None:
        """Take in a worker; it joins a pool with its first store."""
        self._members[worker] = Member(spec)

    def respec(self, worker: Worker, spec: WorkerSpec) -> None:
        """Take over what was learnt of a worker later (the match unit from its metrics)."""
        member = self._members[worker]
        member.spec = spec
        if member.blocks is not None:
            assert member.pool is not None
            member.pool.index.respec(member.blocks, spec.eagle, spec.match_unit)

    def remove(self, worker: Worker) -> None:
        """Free a worker and all it alone held."""
        self._places.leave(self._members.pop(worker))

    def clear(self, worker: Worker) -> int:
        """Forget a worker's holdings; returns their number."""
        member = self._members[worker]
        return member.pool.index.clear(member.blocks) if member.pool and member.blocks else 0

    def restart(self, worker: Worker) -> int:
        """A new engine process: forget holdings, group layout and identity."""
        member = self._members[worker]
        cleared = self.clear(worker)
        self._places.leave(member)
        member.identity, member.shared, member.check = None, False, None
        return cleared

    def identify(self, worker: Worker, identity: HashIdentity, shared: bool) -> None:
        """A root block was re-derived with `identity`; `shared`: it is the fleet's identity."""
        member = self._members[worker]
        member.identity = identity
        if member.spec.verify and (member.check is None or member.check.identity != identity):
            member.check = BlockCheck(identity)
        if shared and not member.shared:
            member.shared = True
            if member.pool and member.blocks:
                member.pool.index.join(member.blocks, member.pool.fleet)

    def store(self, worker: Worker, event: BlockStored, delta: Delta) -> None:
        """Apply one store."""
        member = self._members[worker]
        if member.blocks is not None and member.blocks.contradicts(event):
            delta.lose("block_size")
            return
        if member.blocks is not None and member.blocks.is_full_of_groups(event):
            delta.lose("group_limit")
            return
        before = member.pool
        blocks = self._places.place(worker, member, event, delta)
        if blocks is None or member.pool is None:
            delta.skip("placeholder")
            return
        passed = self._passed(member, blocks, event, delta)
        if passed is None:
            return
        event = passed
        pool, recording = member.pool, delta.operations is not None
        told = (delta.orphans, delta.losses, len(blocks.orphans))
        pool.index.store(blocks, event, delta)
        if recording:
            same = told == (delta.orphans, delta.losses, len(blocks.orphans))
            record_store(pool.index, blocks, event, delta, whole=same and pool is before)

    def apply_payload(self, worker: Worker, payload: bytes, record: bool) -> AppliedPayload | None:
        """Apply a payload without decoding it in Python; None, and no change, where that cannot be done."""
        member = self._members[worker]
        native = _native(member)
        return None if native is None else native[0].apply_payload(native[1], payload, record, member.check)

    def apply_payloads(self, worker: Worker, payloads: list[bytes], record: bool) -> AppliedRun:
        """Apply the first of the payloads without decoding them in Python, as far as that can be done."""
        member = self._members[worker]
        native = _native(member)
        return NOT_APPLIED if native is None else native[0].apply_payloads(native[1], payloads, record, member.check)

    @staticmethod
    def _passed(member: Member, blocks: BlockWorker, event: BlockStored, delta: Delta) -> BlockStored | None:
        """The event as far as its hashes allow; None when nothing of it may be filed."""
        if member.check is not None:
            return member.check.passed(blocks, event, delta)
        if member.spec.verify:  # by which identity is not known
            delta.unchecked += len(event.block_hashes)
        return event

    def drop(self, worker: Worker, event: BlockRemoved, delta: Delta) -> None:
        """Apply one removal."""
        member = self._members[worker]
        if member.pool and member.blocks:
            member.pool.index.remove(member.blocks, event, delta)
            delta.record(("R", event.group, int(event.medium), event.block_hashes))

    def redo(self, worker: Worker, operation: Operation) -> bool:
        """Do a recorded store or removal again. False: it does not fit what is held."""
        member = self._members[worker]
        if member.pool is None or member.blocks is None:
            return False
        return redo_blocks(member.pool.index, member.blocks, operation)

    def dump(self, worker: Worker) -> BlockDump | None:
        """What the worker holds; None before its first store."""
        member = self._members[worker]
        return dump_blocks(member.pool.index, member.blocks) if member.pool and member.blocks else None

    def restore(self, worker: Worker, dump: BlockDump) -> None:
        """Hold again what was dumped. The worker must hold nothing."""
        member = self._members[worker]
        assert member.blocks is None
        blocks = self._places.enter(worker, member, dump.block_size)
        assert member.pool is not None
        restore_blocks(member.pool.index, blocks, dump)

    def match(
        self, model: str, prompt: Prompt, only: Collection[Worker], lora_path: str | None
    ) -> dict[Worker, WorkerMatch]:
        """The matches of those of `only` that hold blocks, each in its own pool."""
        found: dict[Worker, WorkerMatch] = {}
        for pool in [pool for (of, _), pool in self._places.pools.items() if of == model]:
            names, index = pool.names, pool.index
            here = index.holders.matches(prompt, names, index.eagles, None if pool.is_within(only) else only)
            found = found | here if found else here
            if not index.grouped:
                continue
            grouped = {number: names[number] for number in index.grouped if names[number] in only}
            chains = self._chains(prompt, grouped, lora_path)
            for number, depth in match_grouped(index, prompt, grouped, chains):
                found[names[number]] = WorkerMatch(names[number], *depth)
        return found

    def counts(self, worker: Worker) -> tuple[int, int, int, int]:
        """Held blocks per medium (gpu, cpu, disk, other)."""
        member = self._members[worker]
        return member.pool.index.holders.counts(member.blocks) if member.pool and member.blocks else (0, 0, 0, 0)

    def block_size(self, worker: Worker) -> int | None:
        """Tokens per block as the events tell it; None before any."""
        pool = self._members[worker].pool
        return pool.index.block_size if pool else None

    def parked(self, worker: Worker) -> int:
        """Stores that wait for their parent."""
        blocks = self._members[worker].blocks
        return len(blocks.orphans) if blocks else 0

    def stats(self) -> Iterator[PoolStats]:
        """The size of every pool that has workers."""
        for (model, size), pool in self._places.pools.items():
            index = pool.index
            holders = sum(sum(index.holders.counts(worker)) for worker in index.workers.values())
            distinct = index.holders.distinct
            yield PoolStats(model, EngineKind.VLLM, size, len(index.workers), distinct, holders, index.size_bytes)

    def _chains(self, prompt: Prompt, names: Mapping[int, Worker], lora_path: str | None) -> dict[int, EngineChain]:
        """Engine-hash chains for the workers that need one and whose identity is known, shared where equal."""
        chains: dict[int, EngineChain] = {}
        made: dict[tuple[HashIdentity, int], EngineChain] = {}
        for number, worker in names.items():
            member = self._members[worker]
            unit = member.blocks.hash_unit if member.blocks else None
            if unit is None or member.identity is None or (prompt.lora is not None and lora_path is None):
                continue
            key = (member.identity, unit)
            if key not in made:
                made[key] = EngineChain(prompt, member.identity, unit, lora_path or "")
            chains[number] = made[key]
        return chains


def _native(member: Member) -> tuple[NativeHolders, BlockWorker] | None:
    """Where the native core can apply the worker's payloads by itself: nothing of it waits for its parent."""
    if member.pool is None or member.blocks is None or member.blocks.orphans:
        return None
    holders = member.pool.index.holders
    return (holders, member.blocks) if isinstance(holders, NativeHolders) else None
