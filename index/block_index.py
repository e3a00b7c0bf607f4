"""The block-hash index of one vLLM pool: who holds which block, by request key, counted per (worker, group, medium).

A pool is one model's workers of one block size. See docs/adr/0002.
"""

from __future__ import annotations

from collections import deque

from index.block_worker import BlockWorker, HashDomain
from index.delta import Delta
from index.event import BlockRemoved, BlockStored, EngineHash
from index.filed import Run, Slot, SlotHoldings
from index.holders import Holders, new_holders
from index.native import Core
from index.orphans import Orphan
from index.request_key import RequestKey, chained_key, joined_extra, root_key, split_root_extras, strip_lora
from index.worker import Medium

MOST_NAMED = 1024
"""Namespaces of adapters and salts that are remembered, those that were named last."""
_BASE = root_key(None, None)


class BlockIndex:
    """Holders of one pool's blocks. Every method is synchronous and leaves the index consistent."""

    def __init__(self, block_size: int, core: Core | None = None) -> None:
        self.block_size = block_size
        self.holders: Holders = new_holders(block_size, core)
        self.workers: dict[int, BlockWorker] = {}
        self.grouped: set[int] = set()
        """The workers, by number; and those of them with other groups than one of full attention."""
        self.eagles: set[int] = set()
        """Those that decode with EAGLE."""
        self._free: list[int] = []
        self._named: dict[RequestKey, None] = {}

    @property
    def size_bytes(self) -> int:
        """Our own memory in bytes, estimated from table sizes, hashes and keys. 0 when nothing is held."""
        return self.holders.size_bytes + sum(worker.orphans.size_bytes for worker in self.workers.values())

    def add(self, eagle: bool, match_unit: int | None, domain: HashDomain | None = None) -> BlockWorker:
        """A new worker, in a hash domain of its own unless one is given."""
        number = self._free.pop() if self._free else len(self.workers)
        if domain is None:
            domain = self.holders.new_domain(pinned=False)
        worker = BlockWorker(number, domain)
        self.respec(worker, eagle, match_unit)
        self.holders.enter(worker)
        self.workers[number] = worker
        return worker

    def respec(self, worker: BlockWorker, eagle: bool, match_unit: int | None) -> None:
        """Take over what was learnt of a worker."""
        worker.eagle, worker.match_unit = eagle, match_unit
        (self.eagles.add if eagle else self.eagles.discard)(worker.number)

    def learnt(self, worker: BlockWorker) -> None:
        """To be called whenever a worker's group layout may have changed."""
        (self.grouped.discard if worker.plain else self.grouped.add)(worker.number)
        self.holders.learnt(worker)

    def drop(self, worker: BlockWorker) -> int:
        """Free a worker and all it alone held; cost proportional to what it held. Returns the holdings removed."""
        removed = self.clear(worker)
        self.holders.leave(worker)
        self.grouped.discard(worker.number)
        self.eagles.discard(worker.number)
        del self.workers[worker.number]
        self._free.append(worker.number)
        return removed

    def clear(self, worker: BlockWorker) -> int:
        """Forget every holding of a worker, in all groups and media. Returns their number."""
        worker.orphans.clear()
        return self.holders.release_all(worker)

    def join(self, worker: BlockWorker, domain: HashDomain) -> bool:
        """Move a worker's hashes into another domain; False, and no change, when a hash means something else there."""
        return worker.domain is domain or self.holders.move(worker, domain)

    def adopt_by_hash(self, worker: BlockWorker, slots: list[SlotHoldings]) -> None:
        """Take over counted holdings of a worker that comes from another pool; their keys are still to come."""
        for held in slots:
            for block in (*held.hashes, *held.keyless):
                self.holders.claim(worker, held.slot, block)
            self.holders.recount(worker, held.slot, held.counts)

    def hold_by_hash(self, worker: BlockWorker, slot: Slot, block: EngineHash) -> None:
        """Hold one more copy of a block whose key is still to come."""
        self.holders.claim(worker, slot, block)

    def store(self, worker: BlockWorker, event: BlockStored, delta: Delta) -> None:
        """File stored blocks under their request keys, or by hash alone where tokens cannot be paired with hashes."""
        if not self._file(worker, event, delta) or not worker.orphans:
            return
        adopted: list[Orphan] = []
        waiting = deque(worker.orphans.adopt(event.block_hashes))
        while waiting:
            orphan = waiting.popleft()
            adopted.append(orphan)
            if self._file(worker, orphan.event, delta):
                waiting.extend(worker.orphans.adopt(orphan.event.block_hashes))
        for orphan in adopted:
            if orphan.gone:
                self.remove(worker, BlockRemoved(orphan.gone, orphan.event.medium, orphan.event.group), delta)

    def remove(self, worker: BlockWorker, event: BlockRemoved, delta: Delta) -> None:
        """Take one copy of each block away. Unknown hashes are no-ops; counts floor at zero."""
        slot = (event.group, event.medium)
        removed, unknown = self.holders.remove(worker, slot, event.block_hashes)
        delta.removed += removed
        if worker.orphans:
            for block in unknown:
                worker.orphans.removed(block, slot)

    def _file(self, worker: BlockWorker, event: BlockStored, delta: Delta) -> bool:
        """File one event; True when its blocks can be parents now."""
        blocks, expected = event.block_hashes, len(event.block_hashes) * event.block_size * 4
        if not event.tokens or event.block_size <= 0:
            return self._file_placeholder(worker, event, delta)
        if event.bigrams or expected > len(event.tokens):
            delta.lose("shape")
            return False
        spec = worker.groups[event.group]
        partial = event.block_size < spec.block_size
        if not blocks or partial or expected != len(event.tokens) or event.block_size % self.block_size:
            return self._file_by_hash(worker, event, delta)
        extras = _extras_beyond_namespace(event)
        if extras is not None and event.block_size != self.block_size:
            return self._file_by_hash(worker, event, delta)  # where in a coarse block an item ends is not told
        parent = self._parent_key(worker, event)
        if parent is not None and event.parent is None:
            parent = self._namespace(worker, event, parent, extras)
        if parent is not None:
            return self._file_run(worker, event, Run(blocks, event.tokens, parent, extras), delta)
        if not spec.is_full:
            return self._file_by_hash(worker, event, delta)
        worker.orphans.park(event)
        delta.orphans += len(blocks)
        return False

    def _parent_key(self, worker: BlockWorker, event: BlockStored) -> RequestKey | None:
        if event.parent is not None:
            return self.holders.keys_of(worker, [event.parent])[0]
        salt = None
        if event.extra_keys and event.extra_keys[0]:
            salt, _ = split_root_extras(event.extra_keys[0], event.lora_name)
        return root_key(event.lora_name, salt)

    def _namespace(
        self, worker: BlockWorker, event: BlockStored, told: RequestKey, extras: list[bytes] | None
    ) -> RequestKey:
        """The root that a prompt's first blocks lie below: as told; but a connector's event may leave it out.

        Then a known hash tells it, if its meaning is what the tokens come to below a root that was named lately.
        """
        if told != _BASE:
            self._named.pop(told, None)
            self._named[told] = None
            if len(self._named) > MOST_NAMED:
                del self._named[next(iter(self._named))]
            return told
        if event.medium is Medium.GPU or not self._named:
            return told
        known = self.holders.keys_of(worker, event.block_hashes)
        at = next((number for number, key in enumerate(known) if key is not None), None)
        if at is None:
            return told
        tokens = event.tokens[: (at + 1) * event.block_size * 4]
        for root in (told, *reversed(self._named)):
            if chained_key(root, tokens, at + 1, self.block_size * 4, extras) == known[at]:
                return root
        return told

    def _file_run(self, worker: BlockWorker, event: BlockStored, run: Run, delta: Delta) -> bool:
        """True when a block was filed. A hash that came with two meanings: the first stays, the rest is lost."""
        filed = self.holders.file_run(worker, (event.group, event.medium), run)
        delta.stored += filed.stored
        if filed.conflict:
            delta.lose("hash_conflict")
        return not filed.conflict or filed.filed > 0

    def _file_by_hash(self, worker: BlockWorker, event: BlockStored, delta: Delta) -> bool:
        """Hold by hash alone; the key comes from another group's event, before or later."""
        for block in event.block_hashes:
            self._claim(worker, event, block, delta)
        return False

    def _file_placeholder(self, worker: BlockWorker, event: BlockStored, delta: Delta) -> bool:
        """An offload announcement without tokens: good for blocks whose meaning is known, else ignored."""
        for block, key in zip(event.block_hashes, self.holders.keys_of(worker, event.block_hashes), strict=True):
            if key is not None:
                self._claim(worker, event, block, delta)
            else:
                delta.skip("placeholder")
        return False

    def _claim(self, worker: BlockWorker, event: BlockStored, block: EngineHash, delta: Delta) -> None:
        new = self.holders.claim(worker, (event.group, event.medium), block)
        if new is None:
            delta.lose("keyless")
        elif new:
            delta.stored += 1


def _extras_beyond_namespace(event: BlockStored) -> list[bytes] | None:
    """Per block, the extra keys that are not in the namespace, joined; None when there are none at all."""
    if event.extra_keys is None or not any(event.extra_keys):
        return None
    extras: list[bytes] = []
    for number, extra in enumerate(event.extra_keys[: len(event.block_hashes)]):
        rest = strip_lora(extra, event.lora_name) if extra else ()
        if number == 0 and event.parent is None:
            _, rest = split_root_extras(rest, None)
        extras.append(joined_extra(rest))
    return extras + [b""] * (len(event.block_hashes) - len(extras)) if any(extras) else None
