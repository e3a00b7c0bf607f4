"""The block-hash index of one vLLM pool: who holds which block, by request key, counted per (worker, group, medium).

A pool is one model's workers of one block size. See docs/adr/0002.
"""

from __future__ import annotations

from collections import deque

from xxhash import xxh3_64_digest

from index.block_holders import BlockHolders
from index.block_worker import BlockWorker, HashDomain, Slot
from index.delta import Delta
from index.event import BlockRemoved, BlockStored, EngineHash, ExtraKey
from index.orphans import Orphan
from index.request_key import RequestKey, extended, root_key, split_root_extras, strip_lora


class BlockIndex:
    """Holders of one pool's blocks. Every method is synchronous and leaves the index consistent."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._holders = BlockHolders()
        self._free_bits: list[int] = []

    @property
    def workers(self) -> dict[int, BlockWorker]:
        """The pool's workers by bit."""
        return self._holders.workers

    @property
    def tables(self) -> dict[Slot, dict[RequestKey, int]]:
        """Per (group, medium), the mask of holders of each request key. To be read only."""
        return self._holders.tables

    @property
    def size_bytes(self) -> int:
        """Our own memory in bytes, estimated from table sizes, hashes and keys. 0 when nothing is held."""
        return self._holders.size_bytes

    def add(self, eagle: bool, match_unit: int | None, domain: HashDomain | None = None) -> BlockWorker:
        """A new worker, in a hash domain of its own unless one is given."""
        bit = self._free_bits.pop() if self._free_bits else 1 << len(self.workers)
        worker = BlockWorker(bit, domain if domain is not None else HashDomain(), eagle, match_unit)
        worker.domain.mask |= bit
        self.workers[bit] = worker
        return worker

    def drop(self, worker: BlockWorker) -> int:
        """Free a worker and all it alone held; cost proportional to what it held. Returns the holdings removed."""
        removed = self.clear(worker)
        worker.domain.mask &= ~worker.bit
        del self.workers[worker.bit]
        self._free_bits.append(worker.bit)
        return removed

    def clear(self, worker: BlockWorker) -> int:
        """Forget every holding of a worker, in all groups and media. Returns their number."""
        worker.orphans.clear()
        return sum(len(held) for held in self._holders.release_all(worker).values())

    def join(self, worker: BlockWorker, domain: HashDomain) -> bool:
        """Move a worker's hashes into another domain; False, and no change, when a hash means something else there."""
        return worker.domain is domain or self._holders.move(worker, domain)

    def adopt_by_hash(self, worker: BlockWorker, held: dict[Slot, dict[EngineHash, int]]) -> None:
        """Take over counted holdings of a worker that comes from another pool; their keys are still to come."""
        worker.held = held
        for slot, block in worker.blocks():
            self._holders.mark(worker, slot, block, worker.domain.keys.get(block))

    def hold(self, worker: BlockWorker, slot: Slot, hashes: list[EngineHash], keys: list[RequestKey]) -> None:
        """Hold blocks whose keys are known from before, once each; none of them may be held in this slot yet."""
        self._holders.hold(worker, slot, hashes, keys)

    def hold_by_hash(self, worker: BlockWorker, slot: Slot, block: EngineHash) -> None:
        """Hold one more copy of a block whose key is still to come."""
        self._holders.claim(worker, slot, block)

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
        held = worker.held.get(slot, {})
        for block in event.block_hashes:
            count = held.get(block)
            if count is None:
                if worker.orphans:
                    worker.orphans.removed(block, slot)
            elif count > 1:
                held[block] = count - 1
            else:
                del held[block]
                self._holders.release(worker, slot, block)
                delta.removed += 1
        if not held:
            worker.held.pop(slot, None)

    def _file(self, worker: BlockWorker, event: BlockStored, delta: Delta) -> bool:
        """File one event; True when its blocks can be parents now."""
        blocks, expected = event.block_hashes, len(event.block_hashes) * event.block_size * 4
        if not event.tokens or event.block_size <= 0:
            return self._file_placeholder(worker, event, delta)
        if event.bigrams or expected > len(event.tokens):
            delta.skip("shape")
            delta.lossy = True
            return False
        spec = worker.groups[event.group]
        partial = event.block_size < spec.block_size
        if not blocks or partial or expected != len(event.tokens) or event.block_size % self.block_size:
            return self._file_by_hash(worker, event, delta)
        extras = _extras_beyond_namespace(event)
        if extras is not None and event.block_size != self.block_size:
            return self._file_by_hash(worker, event, delta)  # where in a coarse block an item ends is not told
        parent = self._parent_key(worker, event)
        if parent is not None:
            return self._file_run(worker, event, parent, extras, delta)
        if not spec.is_full:
            return self._file_by_hash(worker, event, delta)
        worker.orphans.park(event)
        delta.orphans += len(blocks)
        return False

    def _parent_key(self, worker: BlockWorker, event: BlockStored) -> RequestKey | None:
        if event.parent is not None:
            return worker.domain.keys.get(event.parent)
        salt = None
        if event.extra_keys and event.extra_keys[0]:
            salt, _ = split_root_extras(event.extra_keys[0], event.lora_name)
        return root_key(event.lora_name, salt)

    def _file_run(
        self,
        worker: BlockWorker,
        event: BlockStored,
        key: RequestKey,
        extras: list[tuple[ExtraKey, ...]] | None,
        delta: Delta,
    ) -> bool:
        """The hot loop: hashes pair with token slices, the parent's key is known. True when a block was filed."""
        slot, domain = (event.group, event.medium), worker.domain
        held, table = worker.holdings(slot), self.tables.setdefault(slot, {})
        bit, tokens, step = worker.bit, event.tokens, self.block_size * 4
        keys, several = domain.keys, len(self.tables) > 1
        stride, start = event.block_size * 4, 0
        for number, block in enumerate(event.block_hashes):
            if extras is not None and (extra := extras[number]):
                key = extended(key, extra)
            for at in range(start, start + stride, step):
                key = xxh3_64_digest(key + tokens[at : at + step])
            start += stride
            known = keys.get(block)
            if known is None:
                if key in table or several or domain.keyless:
                    self._holders.learn(domain, block, key)
                else:
                    keys[block] = key
            elif known != key:
                self._refuse(worker, slot, delta)
                return number > 0
            else:
                key = known
            count = held.get(block)
            if count is not None:
                held[block] = count + 1
                continue
            held[block] = 1
            delta.stored += 1
            mask = table.get(key)
            if mask is None:
                table[key] = bit
            elif mask & bit:
                worker.doubled[slot, key] = worker.doubled.get((slot, key), 0) + 1
            else:
                table[key] = mask | bit
        return True

    def _refuse(self, worker: BlockWorker, slot: Slot, delta: Delta) -> None:
        """A hash came with two meanings: the first stays, the rest of the event is lost."""
        delta.skip("hash_conflict")
        delta.lossy = True
        if not self.tables[slot]:
            del self.tables[slot]
        if not worker.held[slot]:
            del worker.held[slot]

    def _file_by_hash(self, worker: BlockWorker, event: BlockStored, delta: Delta) -> bool:
        """Hold by hash alone; the key comes from another group's event, before or later."""
        for block in event.block_hashes:
            self._claim(worker, event, block, delta)
        return False

    def _file_placeholder(self, worker: BlockWorker, event: BlockStored, delta: Delta) -> bool:
        """An offload announcement without tokens: good for blocks whose meaning is known, else ignored."""
        for block in event.block_hashes:
            if block in worker.domain.keys:
                self._claim(worker, event, block, delta)
            else:
                delta.skip("placeholder")
        return False

    def _claim(self, worker: BlockWorker, event: BlockStored, block: EngineHash, delta: Delta) -> None:
        new = self._holders.claim(worker, (event.group, event.medium), block)
        if new is None:
            delta.skip("keyless")
            delta.lossy = True
        elif new:
            delta.stored += 1


def _extras_beyond_namespace(event: BlockStored) -> list[tuple[ExtraKey, ...]] | None:
    """Per block, the extra keys that are not in the namespace; None when there are none at all."""
    if event.extra_keys is None or not any(event.extra_keys):
        return None
    extras: list[tuple[ExtraKey, ...]] = []
    for number, extra in enumerate(event.extra_keys[: len(event.block_hashes)]):
        rest = strip_lora(extra, event.lora_name) if extra else ()
        if number == 0 and event.parent is None:
            _, rest = split_root_extras(rest, None)
        extras.append(rest)
    return extras + [()] * (len(event.block_hashes) - len(extras)) if any(extras) else None
