"""The block-hash index of one vLLM pool: who holds which block, by request key, counted per (worker, group, medium).

A pool is one model's workers of one block size. Common case (one copy, GPU, group 0): one mask per key. The rare rest
(further copies, further hashes of a key) lives in side tables. See docs/adr/0002.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from sys import getsizeof

from xxhash import xxh3_64_digest

from index.block_worker import BlockWorker, HashDomain, Slot
from index.delta import Delta
from index.event import BlockRemoved, BlockStored, EngineHash, ExtraKey
from index.orphans import Orphan
from index.request_key import RequestKey, extended, root_key, split_root_extras, strip_lora

MAX_KEYLESS = 1_000_000
HASH_BYTES = 48
KEY_BYTES = 48


class BlockIndex:
    """Holders of one pool's blocks. Every method is synchronous and leaves the index consistent."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.holders: dict[Slot, dict[RequestKey, int]] = {}
        self.workers: dict[int, BlockWorker] = {}
        self._free_bits: list[int] = []

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
        removed = 0
        held_by_slot, worker.held = worker.held, {}
        for slot, held in held_by_slot.items():
            removed += len(held)
            for block in held:
                self._release(worker, slot, block)
        worker.doubled.clear()
        worker.orphans.clear()
        self.holders = {slot: table for slot, table in self.holders.items() if table}
        return removed

    def join(self, worker: BlockWorker, domain: HashDomain) -> bool:
        """Move a worker's hashes into another domain; False, and no change, when a hash means something else there."""
        old = worker.domain
        if old is domain:
            return True
        pairs = {block: key for _, block in worker.blocks() if (key := old.keys.get(block)) is not None}
        if any(domain.keys.get(block, key) != key for block, key in pairs.items()):
            return False
        held, worker.held = worker.held, {}
        for slot, blocks in held.items():
            for block in blocks:
                self._release(worker, slot, block)
        worker.doubled.clear()
        old.mask &= ~worker.bit
        worker.domain, domain.mask, worker.held = domain, domain.mask | worker.bit, held
        for slot, blocks in held.items():
            for block in blocks:
                self._mark(worker, slot, block, self._known(domain, block, pairs.get(block)))
        return True

    def adopt_by_hash(self, worker: BlockWorker, held: dict[Slot, dict[EngineHash, int]]) -> None:
        """Take over counted holdings of a worker that comes from another pool; their keys are still to come."""
        worker.held = held
        for slot, block in list(worker.blocks()):
            self._mark(worker, slot, block, worker.domain.keys.get(block))

    def store(self, worker: BlockWorker, event: BlockStored, delta: Delta) -> None:
        """File stored blocks under their request keys, or by hash alone where tokens cannot be paired with hashes."""
        waiting = deque((Orphan(event),))
        while waiting:
            orphan = waiting.popleft()
            if self._file(worker, orphan.event, delta) and worker.orphans:
                waiting.extend(worker.orphans.adopt(orphan.event.block_hashes))
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
                    worker.orphans.removed(block)
            elif count > 1:
                held[block] = count - 1
            else:
                del held[block]
                self._release(worker, slot, block)
                delta.removed += 1

    @property
    def size_bytes(self) -> int:
        """Our own memory in bytes, estimated from table sizes, hashes and keys. 0 when nothing is held."""
        total = sum(getsizeof(table) for table in self.holders.values() if table)
        domains = {id(worker.domain): worker.domain for worker in self.workers.values()}
        for domain in domains.values():
            total += getsizeof(domain.keys) + len(domain.keys) * (HASH_BYTES + KEY_BYTES) if domain.keys else 0
        for worker in self.workers.values():
            total += sum(getsizeof(held) for held in worker.held.values() if held) + worker.orphans.size_bytes
        return total

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
        if partial or expected != len(event.tokens) or event.block_size % self.block_size:
            return self._file_by_hash(worker, event, delta)
        parent = self._parent_key(worker, event)
        if parent is None and (not spec.is_full or len(blocks) == 0):
            return self._file_by_hash(worker, event, delta)
        if parent is None:
            worker.orphans.park(event)
            delta.orphans += len(blocks)
            return False
        return self._file_run(worker, event, parent, delta)

    def _parent_key(self, worker: BlockWorker, event: BlockStored) -> RequestKey | None:
        if event.parent is not None:
            return worker.domain.keys.get(event.parent)
        salt = None
        if event.extra_keys and event.extra_keys[0]:
            salt, _ = split_root_extras(event.extra_keys[0], event.lora_name)
        return root_key(event.lora_name, salt)

    def _file_run(self, worker: BlockWorker, event: BlockStored, key: RequestKey, delta: Delta) -> bool:
        """The hot loop: hashes pair with token slices, the parent's key is known."""
        slot = (event.group, event.medium)
        held, table = worker.holdings(slot), self.holders.setdefault(slot, {})
        domain, bit, tokens, step = worker.domain, worker.bit, event.tokens, self.block_size * 4
        keys, several = domain.keys, len(self.holders) > 1
        stride, start = event.block_size * 4, 0
        extras = self._block_extras(event)
        for number, block in enumerate(event.block_hashes):
            if extras is not None and (extra := extras[number]):
                key = extended(key, extra)
            for at in range(start, start + stride, step):
                key = xxh3_64_digest(key + tokens[at : at + step])
            start += stride
            known = keys.get(block)
            if known is None:
                if key in table or several or domain.keyless:
                    self._learn_key(domain, block, key)
                else:
                    keys[block] = key
            elif known != key:
                delta.skip("hash_conflict")
                delta.lossy = True
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

    def _block_extras(self, event: BlockStored) -> list[tuple[ExtraKey, ...]] | None:
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

    def _file_by_hash(self, worker: BlockWorker, event: BlockStored, delta: Delta) -> bool:
        """Hold by hash alone; the key comes from another group's event, before or later."""
        slot, keys = (event.group, event.medium), worker.domain.keys
        for block in event.block_hashes:
            self._claim(worker, slot, block, keys.get(block), delta)
        return False

    def _file_placeholder(self, worker: BlockWorker, event: BlockStored, delta: Delta) -> bool:
        """An offload announcement without tokens: good for blocks whose meaning is known, else ignored."""
        slot, keys = (event.group, event.medium), worker.domain.keys
        for block in event.block_hashes:
            key = keys.get(block)
            if key is None:
                delta.skip("placeholder")
            else:
                self._claim(worker, slot, block, key, delta)
        return False

    def _claim(self, worker: BlockWorker, slot: Slot, block: EngineHash, key: RequestKey | None, delta: Delta) -> None:
        held = worker.holdings(slot)
        count = held.get(block)
        held[block] = 1 if count is None else count + 1
        if count is None:
            delta.stored += 1
            self._mark(worker, slot, block, key)

    def _mark(self, worker: BlockWorker, slot: Slot, block: EngineHash, key: RequestKey | None) -> None:
        """Set the worker's bit for a block it holds, or remember that the key is still to come."""
        if key is None:
            keyless = worker.domain.keyless
            if block in keyless or len(keyless) < MAX_KEYLESS:
                keyless.setdefault(block, set()).add((worker.bit, slot))
            return
        table = self.holders.setdefault(slot, {})
        mask = table.get(key, 0)
        if mask & worker.bit:
            worker.doubled[slot, key] = worker.doubled.get((slot, key), 0) + 1
        else:
            table[key] = mask | worker.bit

    def _known(self, domain: HashDomain, block: EngineHash, key: RequestKey | None) -> RequestKey | None:
        """A block's key in `domain`, entering it there when it is new."""
        if key is not None and block not in domain.keys:
            self._learn_key(domain, block, key)
        return domain.keys.get(block)

    def _learn_key(self, domain: HashDomain, block: EngineHash, key: RequestKey) -> None:
        """Enter engine hash -> key; a key that already has holders gets an alias; keyless holdings find their place."""
        if any(table.get(key, 0) & domain.mask for table in self.holders.values()):
            domain.aliases.setdefault(key, set()).add(block)
        domain.keys[block] = key
        if domain.keyless:
            for bit, slot in domain.keyless.pop(block, ()):
                self._mark(self.workers[bit], slot, block, key)

    def _release(self, worker: BlockWorker, slot: Slot, block: EngineHash) -> None:
        """Clear the worker's bit; the key and its hashes go with the domain's last holder."""
        domain = worker.domain
        key = domain.keys.get(block)
        if key is None:
            _forget_keyless(domain, block, (worker.bit, slot))
            return
        if worker.doubled and (slot, key) in worker.doubled:
            _decrement(worker.doubled, (slot, key))
        else:
            table = self.holders[slot]
            mask = table.get(key, 0) & ~worker.bit
            if mask:
                table[key] = mask
            else:
                table.pop(key, None)
        if any(table.get(key, 0) & domain.mask for table in self.holders.values()):
            if key in domain.aliases:
                domain.aliases[key].add(block)
            return
        del domain.keys[block]
        for alias in domain.aliases.pop(key, ()):
            domain.keys.pop(alias, None)


def _forget_keyless(domain: HashDomain, block: EngineHash, holding: tuple[int, Slot]) -> None:
    holdings = domain.keyless.get(block)
    if holdings is not None:
        holdings.discard(holding)
        if not holdings:
            del domain.keyless[block]


def _decrement(counts: dict[tuple[Slot, RequestKey], int], at: tuple[Slot, RequestKey]) -> None:
    if counts[at] == 1:
        del counts[at]
    else:
        counts[at] -= 1


def held_bits(mask: int) -> Iterable[int]:
    """The single bits of a mask, lowest first."""
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit
