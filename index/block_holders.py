"""Who holds which request key, as masks per (group, medium), and what the engines' hashes mean in each hash domain.

Common case (one hash per key, one copy): one bit in a mask. The rare rest lies in side tables: further hashes of a key
(aliases), further holdings of a key by one worker (doubled), held hashes whose tokens are not known yet (keyless).
"""

from __future__ import annotations

from sys import getsizeof

from index.block_worker import BlockWorker, HashDomain, Slot
from index.event import EngineHash
from index.request_key import RequestKey

MAX_KEYLESS = 1_000_000
HASH_BYTES = 48
KEY_BYTES = 48


class BlockHolders:
    """The masks of one pool. Empty tables are removed; a key and its hashes go with the domain's last holder."""

    def __init__(self) -> None:
        self.tables: dict[Slot, dict[RequestKey, int]] = {}
        self.workers: dict[int, BlockWorker] = {}

    def claim(self, worker: BlockWorker, slot: Slot, block: EngineHash) -> bool | None:
        """One more copy of a block, by its hash. True: a new holding; None: no room for one without a known meaning."""
        held = worker.holdings(slot)
        count = held.get(block)
        if count is not None:
            held[block] = count + 1
            return False
        domain = worker.domain
        if block not in domain.keys and block not in domain.keyless and len(domain.keyless) >= MAX_KEYLESS:
            return None
        held[block] = 1
        self.mark(worker, slot, block, domain.keys.get(block))
        return True

    def hold(self, worker: BlockWorker, slot: Slot, hashes: list[EngineHash], keys: list[RequestKey]) -> None:
        """New holdings in bulk, with their keys; a hash that means something else in the domain is left out."""
        held, domain, bit = worker.holdings(slot), worker.domain, worker.bit
        known, table = domain.keys, self.tables.setdefault(slot, {})
        simple = len(self.tables) == 1 and not domain.keyless
        for block, key in zip(hashes, keys, strict=True):
            meaning = known.get(block)
            if meaning is not None and meaning != key:
                continue
            held[block] = 1
            mask = table.get(key)
            if meaning is None:
                if mask is None and simple:
                    known[block] = key
                else:
                    self.learn(domain, block, key)
                    mask = table.get(key)
            if mask is None:
                table[key] = bit
            elif mask & bit:
                worker.doubled[slot, key] = worker.doubled.get((slot, key), 0) + 1
            else:
                table[key] = mask | bit
        if not table:
            del self.tables[slot]
        if not held:
            del worker.held[slot]

    def mark(self, worker: BlockWorker, slot: Slot, block: EngineHash, key: RequestKey | None) -> None:
        """Set the worker's bit for a block it holds, or remember that the key is still to come."""
        if key is None:
            worker.domain.keyless.setdefault(block, set()).add((worker.bit, slot))
            return
        table = self.tables.setdefault(slot, {})
        mask = table.get(key, 0)
        if mask & worker.bit:
            worker.doubled[slot, key] = worker.doubled.get((slot, key), 0) + 1
        else:
            table[key] = mask | worker.bit

    def learn(self, domain: HashDomain, block: EngineHash, key: RequestKey) -> None:
        """Enter engine hash -> key; a key that already has holders gets an alias; keyless holdings find their place."""
        for table in self.tables.values():
            if table.get(key, 0) & domain.mask:
                domain.aliases.setdefault(key, set()).add(block)
                break
        domain.keys[block] = key
        if domain.keyless:
            for bit, slot in domain.keyless.pop(block, ()):
                self.mark(self.workers[bit], slot, block, key)

    def release(self, worker: BlockWorker, slot: Slot, block: EngineHash) -> None:
        """Clear the worker's bit for a hash it no longer holds."""
        domain = worker.domain
        key = domain.keys.get(block)
        if key is None:
            _forget_keyless(domain, block, (worker.bit, slot))
            return
        if worker.doubled and (slot, key) in worker.doubled:
            _decrement(worker.doubled, (slot, key))
        else:
            self._unmark(slot, key, worker.bit)
        for table in self.tables.values():
            if table.get(key, 0) & domain.mask:
                if key in domain.aliases:
                    domain.aliases[key].add(block)
                return
        del domain.keys[block]
        if domain.aliases:
            for alias in domain.aliases.pop(key, ()):
                domain.keys.pop(alias, None)

    def release_all(self, worker: BlockWorker) -> dict[Slot, dict[EngineHash, int]]:
        """Clear every bit of a worker; returns the counted hashes it held."""
        held_by_slot, worker.held = worker.held, {}
        for slot, held in held_by_slot.items():
            for block in held:
                self.release(worker, slot, block)
        assert not worker.doubled
        return held_by_slot

    def move(self, worker: BlockWorker, domain: HashDomain) -> bool:
        """Take a worker's hashes into another domain; False, and no change, when a hash means something else there."""
        old = worker.domain
        told = {block: key for _, block in worker.blocks() if (key := old.keys.get(block)) is not None}
        if any(domain.keys.get(block, key) != key for block, key in told.items()):
            return False
        held = self.release_all(worker)
        old.mask &= ~worker.bit
        worker.domain, worker.held, domain.mask = domain, held, domain.mask | worker.bit
        for slot, block in worker.blocks():
            if block in told and block not in domain.keys:
                self.learn(domain, block, told[block])
            self.mark(worker, slot, block, domain.keys.get(block))
        return True

    @property
    def size_bytes(self) -> int:
        """Our own memory in bytes, estimated from table sizes, hashes and keys. 0 when nothing is held."""
        total = sum(getsizeof(table) for table in self.tables.values())
        domains = {id(worker.domain): worker.domain for worker in self.workers.values()}
        for domain in domains.values():
            if domain.keys:
                total += getsizeof(domain.keys) + len(domain.keys) * (HASH_BYTES + KEY_BYTES)
            if domain.keyless:
                total += getsizeof(domain.keyless) + len(domain.keyless) * (HASH_BYTES + getsizeof(set()))
        for worker in self.workers.values():
            total += sum(getsizeof(held) for held in worker.held.values()) + worker.orphans.size_bytes
        return total

    def _unmark(self, slot: Slot, key: RequestKey, bit: int) -> None:
        table = self.tables[slot]
        mask = table[key] & ~bit
        if mask:
            table[key] = mask
            return
        del table[key]
        if not table:
            del self.tables[slot]


def _forget_keyless(domain: HashDomain, block: EngineHash, holding: tuple[int, Slot]) -> None:
    holdings = domain.keyless[block]
    holdings.discard(holding)
    if not holdings:
        del domain.keyless[block]


def _decrement(counts: dict[tuple[Slot, RequestKey], int], at: tuple[Slot, RequestKey]) -> None:
    if counts[at] == 1:
        del counts[at]
    else:
        counts[at] -= 1
