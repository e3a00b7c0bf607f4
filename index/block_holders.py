"""Who holds which request key, as masks per (group, medium), and what the engines' hashes mean in each hash domain.

Common case (one hash per key, one copy): one bit in a mask. The rare rest lies in side tables: further hashes of a key
(aliases), further holdings of a key by one worker (doubled), held hashes whose tokens are not known yet (keyless).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Set
from sys import getsizeof

from xxhash import xxh3_64_digest

from index.block_walk import walk
from index.block_worker import BlockWorker, HashDomain
from index.event import EngineHash
from index.filed import Filed, Run, Slot, SlotHoldings, Walked
from index.prompt import Prompt, WorkerMatch
from index.request_key import RequestKey, below_joined, split_keys
from index.worker import Worker

MAX_KEYLESS = 1_000_000
HASH_BYTES = 48
KEY_BYTES = 48


class BlockHolders:
    """The masks of one pool. Empty tables are removed; a key and its hashes go with the domain's last holder."""

    def __init__(self, block_size: int) -> None:
        self.tables: dict[Slot, dict[RequestKey, int]] = {}
        self._workers: dict[int, BlockWorker] = {}
        self._block_size = block_size

    def new_domain(self, pinned: bool) -> HashDomain:
        """A hash domain; it goes when nobody names it any more."""
        del pinned
        return HashDomain()

    def enter(self, worker: BlockWorker) -> None:
        """Take in a worker, in its domain."""
        worker.domain.mask |= worker.bit
        self._workers[worker.number] = worker

    def leave(self, worker: BlockWorker) -> None:
        """Let a worker go that holds nothing any more."""
        worker.domain.mask &= ~worker.bit
        del self._workers[worker.number]

    def learnt(self, worker: BlockWorker) -> None:
        """Nothing to do: layouts are read where they are."""

    def claim(self, worker: BlockWorker, slot: Slot, block: EngineHash) -> bool | None:
        """One more copy of a block, by its hash. True: a new holding; None: no room for one without a known meaning."""
        held = holdings(worker, slot)
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

    def file_run(self, worker: BlockWorker, slot: Slot, run: Run) -> Filed:
        """The hot loop: hashes pair with token slices. Stops at a hash that means something else in the domain."""
        held, table, domain = holdings(worker, slot), self.tables.setdefault(slot, {}), worker.domain
        bit, tokens, step, stored = worker.bit, run.tokens, self._block_size * 4, 0
        keys, several = domain.keys, len(self.tables) > 1
        key, stride, start = run.parent, len(run.tokens) // len(run.hashes), 0
        for number, block in enumerate(run.hashes):
            if run.extras is not None and (extra := run.extras[number]):
                key = below_joined(key, extra)
            for at in range(start, start + stride, step):
                key = xxh3_64_digest(key + tokens[at : at + step])
            start += stride
            known = keys.get(block)
            if known is None:
                if key in table or several or domain.keyless:
                    self.learn(domain, block, key)
                else:
                    keys[block] = key
            elif known != key:
                self._tidy(worker, slot)
                return Filed(number, stored, conflict=True)
            count = held.get(block)
            if count is not None:
                held[block] = count + 1
                continue
            held[block] = 1
            stored += 1
            mask = table.get(key)
            if mask is None:
                table[key] = bit
            elif mask & bit:
                worker.doubled[slot, key] = worker.doubled.get((slot, key), 0) + 1
            else:
                table[key] = mask | bit
        return Filed(len(run.hashes), stored, conflict=False)

    def hold(self, worker: BlockWorker, slot: Slot, hashes: list[EngineHash], keys: bytes) -> None:
        """One more copy of each block, their keys told; a hash that means something else in the domain is left out."""
        held, domain, bit = holdings(worker, slot), worker.domain, worker.bit
        known, table = domain.keys, self.tables.setdefault(slot, {})
        simple = len(self.tables) == 1 and not domain.keyless
        for block, key in zip(hashes, split_keys(keys), strict=True):
            count = held.get(block)
            if count is not None:
                held[block] = count + 1
                if block not in known:
                    self.learn(domain, block, key)
                continue
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
        self._tidy(worker, slot)

    def recount(self, worker: BlockWorker, slot: Slot, counts: dict[EngineHash, int]) -> None:
        """Set the counts of hashes that are held."""
        held = worker.held.get(slot, {})
        for block, count in counts.items():
            if block in held:
                held[block] = count

    def remove(self, worker: BlockWorker, slot: Slot, hashes: list[EngineHash]) -> tuple[int, list[EngineHash]]:
        """Take one copy of each block away: the holdings that vanished, and the hashes that are not held."""
        held, removed = worker.held.get(slot, {}), 0
        unknown: list[EngineHash] = []
        for block in hashes:
            count = held.get(block)
            if count is None:
                unknown.append(block)
            elif count > 1:
                held[block] = count - 1
            else:
                del held[block]
                self.release(worker, slot, block)
                removed += 1
        if not held:
            worker.held.pop(slot, None)
        return removed, unknown

    def mark(self, worker: BlockWorker, slot: Slot, block: EngineHash, key: RequestKey | None) -> None:
        """Set the worker's bit for a block it holds, or remember that the key is still to come."""
        if key is None:
            worker.domain.keyless.setdefault(block, set()).add((worker.number, slot))
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
            for number, slot in domain.keyless.pop(block, ()):
                self.mark(self._workers[number], slot, block, key)

    def release(self, worker: BlockWorker, slot: Slot, block: EngineHash) -> None:
        """Clear the worker's bit for a hash it no longer holds."""
        domain = worker.domain
        key = domain.keys.get(block)
        if key is None:
            _forget_keyless(domain, block, (worker.number, slot))
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

    def release_all(self, worker: BlockWorker) -> int:
        """Forget all a worker holds. Returns the number of holdings."""
        return sum(len(held) for held in self._take_all(worker).values())

    def move(self, worker: BlockWorker, domain: HashDomain) -> bool:
        """Take a worker's hashes into another domain; False, and no change, when a hash means something else there."""
        old = worker.domain
        told = {block: key for _, block in _blocks(worker) if (key := old.keys.get(block)) is not None}
        if any(domain.keys.get(block, key) != key for block, key in told.items()):
            return False
        held = self._take_all(worker)
        old.mask &= ~worker.bit
        worker.domain, worker.held, domain.mask = domain, held, domain.mask | worker.bit
        for slot, block in _blocks(worker):
            if block in told and block not in domain.keys:
                self.learn(domain, block, told[block])
            self.mark(worker, slot, block, domain.keys.get(block))
        return True

    def keys_of(self, worker: BlockWorker, hashes: list[EngineHash]) -> list[RequestKey | None]:
        """What hashes mean in the worker's domain; None where that is not known."""
        keys = worker.domain.keys
        return [keys.get(block) for block in hashes]

    def slots(self, worker: BlockWorker) -> list[SlotHoldings]:
        """Everything a worker holds."""
        keys, found = worker.domain.keys, []
        for slot, held in worker.held.items():
            hashes = [block for block in held if block in keys]
            keyless = [block for block in held if block not in keys] if len(hashes) < len(held) else []
            counts = {block: count for block, count in held.items() if count > 1}
            found.append(SlotHoldings(slot, hashes, b"".join([keys[block] for block in hashes]), keyless, counts))
        return found

    def counts(self, worker: BlockWorker) -> tuple[int, int, int, int]:
        """Held blocks per medium (gpu, cpu, disk, other), each hash once per group."""
        counts = [0, 0, 0, 0]
        for (_, medium), held in worker.held.items():
            counts[medium] += len(held)
        return counts[0], counts[1], counts[2], counts[3]

    def holds_hash(self, worker: BlockWorker, group: int, block: EngineHash) -> bool:
        """Whether a worker holds a hash in a group, in any medium."""
        return any(of == group and block in held for (of, _), held in worker.held.items())

    def holds_key(self, worker: BlockWorker, group: int, key: RequestKey) -> bool:
        """Whether a worker holds a request key in a group, in any medium."""
        return any(of == group and table.get(key, 0) & worker.bit for (of, _), table in self.tables.items())

    def matches(
        self, prompt: Prompt, names: list[Worker], eagles: Set[int], only: Collection[Worker] | None
    ) -> dict[Worker, WorkerMatch]:
        """The matches of those plain workers of `only` that hold anything of the prompt, the deepest first.

        `only=None` means all of `names`: then nobody is looked up in it.
        """
        plain = sum(worker.bit for worker in self._workers.values() if worker.plain)
        size, most = self._block_size, (prompt.length - 1) // self._block_size
        found: dict[Worker, WorkerMatch] = {}
        for number, depth, *media in reversed(walk(self.tables, prompt, size, plain, 0)):
            worker = names[number]
            if only is None or worker in only:
                blocks = min(depth, most)
                if blocks > 0 and number in eagles:
                    blocks -= 1
                gpu, cpu, disk, other = [count * size for count in media]
                found[worker] = WorkerMatch(worker, depth * size, blocks * size, (gpu, cpu, disk, other))
        return found

    def walk_one(self, prompt: Prompt, worker: BlockWorker, group: int) -> list[Walked]:
        """Leading blocks of one worker in one group."""
        return walk(self.tables, prompt, self._block_size, worker.bit, group)

    @property
    def distinct(self) -> int:
        """Different request keys that are held."""
        if len(self.tables) == 1:
            return len(next(iter(self.tables.values())))
        return len(set().union(*self.tables.values()))

    @property
    def entries(self) -> int:
        """Entries of all tables: 0 when nothing is held."""
        total = sum(1 + len(table) for table in self.tables.values())
        for domain in self._domains():
            total += len(domain.keys) + len(domain.aliases) + len(domain.keyless)
        for worker in self._workers.values():
            total += len(worker.doubled) + sum(1 + len(held) for held in worker.held.values())
        return total

    @property
    def size_bytes(self) -> int:
        """Our own memory in bytes, estimated from table sizes, hashes and keys. 0 when nothing is held."""
        total = sum(getsizeof(table) for table in self.tables.values())
        for domain in self._domains():
            if domain.keys:
                total += getsizeof(domain.keys) + len(domain.keys) * (HASH_BYTES + KEY_BYTES)
            if domain.keyless:
                total += getsizeof(domain.keyless) + len(domain.keyless) * (HASH_BYTES + getsizeof(set()))
        for worker in self._workers.values():
            total += sum(getsizeof(held) for held in worker.held.values())
        return total

    def _domains(self) -> list[HashDomain]:
        return list({id(worker.domain): worker.domain for worker in self._workers.values()}.values())

    def _take_all(self, worker: BlockWorker) -> dict[Slot, dict[EngineHash, int]]:
        """Clear every bit of a worker; returns the counted hashes it held."""
        held_by_slot, worker.held = worker.held, {}
        for slot, held in held_by_slot.items():
            for block in held:
                self.release(worker, slot, block)
        assert not worker.doubled
        return held_by_slot

    def _tidy(self, worker: BlockWorker, slot: Slot) -> None:
        if not self.tables[slot]:
            del self.tables[slot]
        if not worker.held[slot]:
            del worker.held[slot]

    def _unmark(self, slot: Slot, key: RequestKey, bit: int) -> None:
        table = self.tables[slot]
        mask = table[key] & ~bit
        if mask:
            table[key] = mask
            return
        del table[key]
        if not table:
            del self.tables[slot]


def holdings(worker: BlockWorker, slot: Slot) -> dict[EngineHash, int]:
    """The counted hashes of one slot, made on first use."""
    return worker.held.setdefault(slot, {})


def _blocks(worker: BlockWorker) -> Iterator[tuple[Slot, EngineHash]]:
    """Everything held, once per slot."""
    for slot, held in worker.held.items():
        for block in held:
            yield slot, block


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
