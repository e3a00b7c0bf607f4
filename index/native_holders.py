"""The native core's holders (index/core/block_holders.h) behind the interface of `index/holders.py`."""

from __future__ import annotations

from collections.abc import Collection, Set
from types import ModuleType
from typing import Any

import msgspec

from index import block_holders
from index.block_check import BlockCheck
from index.block_hash import HashIdentity, none_hash
from index.block_worker import BlockWorker, HashDomain
from index.delta import AppliedPayload, AppliedRun, Delta
from index.dump import Recorded
from index.event import EngineHash
from index.filed import Filed, Run, Slot, SlotHoldings, Walked
from index.prompt import Prompt, WorkerMatch
from index.request_key import RequestKey, items_by_block, joined_extra, root_key
from index.worker import Medium, Worker

PLAIN_ROOT = root_key(None, None)


class NativeHolders:
    """The holdings of one pool in the native core. Workers and domains go by number there."""

    def __init__(self, module: ModuleType, block_size: int) -> None:
        self._core = module.BlockHolders(block_size)
        self._new_rule = module.BlockRule
        self._rules: dict[HashIdentity, object] = {}
        self._block_size = block_size

    def new_domain(self, pinned: bool) -> HashDomain:
        """A hash domain. One that is not pinned goes with its last worker."""
        return HashDomain(number=self._core.new_domain(pinned))

    def enter(self, worker: BlockWorker) -> None:
        """Take in a worker, in its domain."""
        self._core.enter(worker.number, worker.domain.number)
        self.learnt(worker)

    def leave(self, worker: BlockWorker) -> None:
        """Let a worker go that holds nothing any more."""
        self._core.leave(worker.number)

    def move(self, worker: BlockWorker, domain: HashDomain) -> bool:
        """Take a worker's hashes into another domain; False, and no change, when a hash means something else there."""
        if not self._core.move(worker.number, domain.number):
            return False
        worker.domain = domain
        return True

    def learnt(self, worker: BlockWorker) -> None:
        """Tell the core what payloads of plain events must look like."""
        spec = worker.groups.get(0) if worker.plain else None
        size, kind = (spec.block_size, spec.kind or "") if spec is not None else (0, "")
        if size != self._block_size or not kind.isascii() or "\0" in kind:
            size, kind = 0, ""
        self._core.set_layout(worker.number, worker.plain, 0 in worker.settled, size, kind)

    def apply_payload(
        self, worker: BlockWorker, payload: bytes, record: bool, check: BlockCheck | None = None
    ) -> AppliedPayload | None:
        """Apply a payload whose events are all plain, as far as they are; None, and no change, for any other.

        With `check` it also stops before a store that has a wrong hash.
        """
        rule, proven_size = self._rule(check)
        applied = self._core.apply_payload(worker.number, PLAIN_ROOT, payload, record, rule, proven_size)
        return None if applied is None else self._told(applied, record, check)

    def apply_payloads(
        self, worker: BlockWorker, payloads: list[bytes], record: bool, check: BlockCheck | None = None
    ) -> AppliedRun:
        """Apply the first of the payloads, as long as they are plain and applied wholly."""
        rule, proven_size = self._rule(check)
        applied = self._core.apply_payloads(worker.number, PLAIN_ROOT, payloads, record, rule, proven_size)
        count, ts, stores, removals, matched, unchecked, begun, recorded = applied
        if matched and check is not None:
            check.proven_size = self._block_size
        named: list[tuple[float, list[Recorded] | None]] = [
            (made, [msgspec.Raw(one) for one in operations]) for made, operations in recorded
        ]
        last = None if begun is None else self._told(begun, record, check)
        return AppliedRun(count, ts, stores, removals, last, named, matched, 0 if check is None else unchecked)

    def _told(self, applied: tuple[Any, ...], record: bool, check: BlockCheck | None) -> AppliedPayload:
        """The core's account of one payload."""
        ts, events, done, stores, removals, stored, removed, conflicts, operations, matched, unchecked = applied
        delta = Delta(stored, removed, operations=[msgspec.Raw(one) for one in operations] if record else None)
        if check is not None:
            delta.matched, delta.unchecked = matched, unchecked
            if matched:
                check.proven_size = self._block_size
        if conflicts:
            delta.skipped["hash_conflict"] = delta.losses = conflicts
            delta.lossy, delta.operations = True, None
        return AppliedPayload(ts, events, done, stores, removals, delta)

    def _rule(self, check: BlockCheck | None) -> tuple[object, int]:
        """What the core checks by, and the block size that is proven."""
        if check is None:
            return None, 0
        rule = self._rules.get(check.identity)
        if rule is None:
            rule = self._new_rule(check.identity.algorithm, none_hash(check.identity))
            self._rules[check.identity] = rule
        return rule, check.proven_size

    def claim(self, worker: BlockWorker, slot: Slot, block: EngineHash) -> bool | None:
        """One more copy of a block, by its hash. True: a new holding; None: no room for one without a known meaning."""
        claimed: bool | None = self._core.claim(worker.number, *slot, block, block_holders.MAX_KEYLESS)
        return claimed

    def file_run(self, worker: BlockWorker, slot: Slot, run: Run) -> Filed:
        """Blocks whose hashes pair with token slices, below a known key. Stops at a hash that means something else."""
        return Filed(*self._core.file_run(worker.number, *slot, run.hashes, run.tokens, run.parent, run.extras))

    def hold(self, worker: BlockWorker, slot: Slot, hashes: list[EngineHash], keys: bytes) -> None:
        """One more copy of each block, their keys told; a hash that means something else in the domain is left out."""
        self._core.hold(worker.number, *slot, hashes, keys)

    def recount(self, worker: BlockWorker, slot: Slot, counts: dict[EngineHash, int]) -> None:
        """Set the counts of hashes that are held."""
        self._core.recount(worker.number, *slot, counts)

    def remove(self, worker: BlockWorker, slot: Slot, hashes: list[EngineHash]) -> tuple[int, list[EngineHash]]:
        """Take one copy of each block away: the holdings that vanished, and the hashes that are not held."""
        removed, unknown = self._core.remove(worker.number, *slot, hashes)
        return removed, unknown

    def release_all(self, worker: BlockWorker) -> int:
        """Forget all a worker holds. Returns the number of holdings."""
        released: int = self._core.release_all(worker.number)
        return released

    def keys_of(self, worker: BlockWorker, hashes: list[EngineHash]) -> list[RequestKey | None]:
        """What hashes mean in the worker's domain; None where that is not known."""
        keys: list[RequestKey | None] = self._core.keys_of(worker.number, hashes)
        return keys

    def slots(self, worker: BlockWorker) -> list[SlotHoldings]:
        """Everything a worker holds."""
        return [SlotHoldings((group, Medium(medium)), *rest) for group, medium, *rest in self._core.dump(worker.number)]

    def counts(self, worker: BlockWorker) -> tuple[int, int, int, int]:
        """Held blocks per medium (gpu, cpu, disk, other), each hash once per group."""
        counts: tuple[int, int, int, int] = self._core.counts(worker.number)
        return counts

    def holds_hash(self, worker: BlockWorker, group: int, block: EngineHash) -> bool:
        """Whether a worker holds a hash in a group, in any medium."""
        held: bool = self._core.holds_hash(worker.number, group, block)
        return held

    def holds_key(self, worker: BlockWorker, group: int, key: RequestKey) -> bool:
        """Whether a worker holds a request key in a group, in any medium."""
        held: bool = self._core.holds_key(worker.number, group, key)
        return held

    def matches(
        self, prompt: Prompt, names: list[Worker], eagles: Set[int], only: Collection[Worker] | None
    ) -> dict[Worker, WorkerMatch]:
        """The matches of those plain workers of `only` that hold anything of the prompt, the deepest first."""
        found: dict[Worker, WorkerMatch] = self._core.matches(
            _root(prompt), prompt.tokens, self._extras(prompt), names, eagles, only, WorkerMatch
        )
        return found

    def walk_one(self, prompt: Prompt, worker: BlockWorker, group: int) -> list[Walked]:
        """Leading blocks of one worker in one group."""
        extras = self._extras(prompt)
        found: list[Walked] = self._core.walk_one(_root(prompt), prompt.tokens, extras, worker.number, group)
        return found

    @property
    def distinct(self) -> int:
        """Different request keys that are held."""
        count: int = self._core.distinct()
        return count

    @property
    def entries(self) -> int:
        """Entries of all tables: 0 when nothing is held."""
        count: int = self._core.entries()
        return count

    @property
    def size_bytes(self) -> int:
        """Memory in bytes of the tables. 0 when nothing is held."""
        size: int = self._core.size_bytes()
        return size

    def _extras(self, prompt: Prompt) -> list[tuple[int, bytes]]:
        if not prompt.mm_items:
            return []
        items = items_by_block(prompt.mm_items, prompt.length, self._block_size)
        return [(number, joined_extra(items[number])) for number in sorted(items)]


def _root(prompt: Prompt) -> RequestKey:
    if prompt.lora is None and prompt.cache_salt is None:
        return PLAIN_ROOT
    return root_key(prompt.lora, prompt.cache_salt)
