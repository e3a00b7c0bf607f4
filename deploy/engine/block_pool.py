"""vLLM's prefix cache: a pool of fixed-size blocks, found again by the chained hash of their content.

Mirrors vllm/v1/core/block_pool.py, kv_cache_manager.py and single_type_kv_cache_manager.py (0.32.0) for one
full-attention group: only full blocks are cached, at schedule time; the first miss ends a hit; a hit leaves the last
token to compute; equal blocks are separate copies; freed blocks are reused from the end of the sequence on, those
without content first, then the least recently used. Lookahead slots, sliding windows and Mamba are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from deploy.engine.block_chain import BlockChain, wire_hash
from deploy.engine.block_queue import FreeQueue
from deploy.engine.block_table import BlockTable
from deploy.engine.cache import PLAIN, CacheStats, KVSequence, Namespace
from index.block_hash import HashIdentity
from index.event import AllBlocksCleared, BlockRemoved, KVEvent


class BlockPool:
    """A `KVCache` of `num_blocks` blocks. As in vLLM the first one is never used (`null_block`).

    With `overlap` (vLLM's asynchronous scheduling, its default) a block that a decode step fills is cached when the
    next step is planned already, as its last token is not known before (`AsyncScheduler`).
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 16,
        identity: HashIdentity = HashIdentity("sha256", None),  # noqa: B008  (a value)
        *,
        int_hashes: bool = True,
        overlap: bool = False,
    ) -> None:
        assert num_blocks > 1
        self.block_size = block_size
        self.identity = identity
        self._num_blocks = num_blocks
        self._int_hashes = int_hashes
        self._overlap = overlap
        self._table = BlockTable()
        self._free = FreeQueue(range(1, num_blocks))
        self._holders = [0] * num_blocks
        self._running: dict[KVSequence, _Hold] = {}
        self._events: list[KVEvent] = []
        self._evicted = 0  # blocks whose content was lost, since the start
        self._evictable = 0  # cached blocks that are free

    @property
    def slots_total(self) -> int:
        return self._num_blocks * self.block_size

    def peek(self, tokens: list[int], namespace: Namespace = PLAIN) -> int:
        return len(self._lookup(tokens, self._chain(namespace))) * self.block_size

    def start(
        self,
        tokens: list[int],
        namespace: Namespace = PLAIN,
        *,
        limit: int | None = None,
        reuse: bool = True,
        prompt_length: int | None = None,
    ) -> KVSequence | None:
        """As `KVCache.start`; None too when the whole prompt would not fit (`scheduler_reserve_full_isl`)."""
        assert tokens
        chain = self._chain(namespace)
        hits = self._lookup(tokens, chain) if reuse else []
        idle = sum(not self._holders[block] for block in hits)
        if self._blocks_for(len(tokens)) - len(hits) + idle > len(self._free):
            return None
        for block in hits:
            self._hold(block)
        cached = len(hits) * self.block_size
        sequence = KVSequence(
            list(tokens),
            len(tokens) if prompt_length is None else prompt_length,
            namespace,
            cached_tokens=cached,
            computed_tokens=cached,
        )
        self._running[sequence] = hold = _Hold(chain, hits, len(hits), prefill_end=len(tokens))
        self._give_slots(sequence, hold, cached)
        rest = len(tokens) - cached
        fits = self.extend(sequence, rest if limit is None else min(rest, limit))
        assert fits
        return sequence

    def extend(self, sequence: KVSequence, count: int) -> bool:
        assert count > 0
        assert not sequence.pending
        hold, end = self._running[sequence], sequence.computed_tokens + count
        assert end <= len(sequence.tokens)
        missing = self._blocks_for(end) - len(hold.blocks)
        if missing > len(self._free):
            return False
        hold.blocks.extend(self._take() for _ in range(missing))
        self._give_slots(sequence, hold, end)
        if not self._overlap or sequence.computed_tokens < hold.prefill_end:
            self._cache_full_blocks(sequence, hold, end)
        return True

    def checkpoint(self, sequence: KVSequence) -> None:
        self._cache_full_blocks(sequence, self._running[sequence], sequence.computed_tokens)

    def computed(self, sequence: KVSequence) -> None:
        sequence.computed_tokens = len(sequence.slots)

    def finish(self, sequence: KVSequence, *, keep: bool = True) -> None:
        """As `KVCache.finish`; `keep` makes a difference with `overlap` only: to the block that was just filled."""
        if keep:
            self.checkpoint(sequence)
        empty: list[int] = []
        cached: list[int] = []
        for block in reversed(self._running.pop(sequence).blocks):
            self._holders[block] -= 1
            if not self._holders[block]:
                (cached if block in self._table else empty).append(block)
        self._free.give_back(empty, cached)
        self._evictable += len(cached)

    def take_events(self) -> list[KVEvent]:
        events, self._events = self._events, []
        return events

    def clear(self) -> bool:
        if self._running:
            return False
        self._table = BlockTable()
        self._evictable = 0
        self._events.append(AllBlocksCleared())
        return True

    def stats(self) -> CacheStats:
        size, free = self.block_size, len(self._free)
        return CacheStats(
            total=(self._num_blocks - 1) * size,
            used=(self._num_blocks - 1 - free) * size,
            evictable=self._evictable * size,
            free=(free - self._evictable) * size,
            evicted=self._evicted * size,
        )

    def _chain(self, namespace: Namespace) -> BlockChain:
        return BlockChain(self.identity, self.block_size, namespace)

    def _lookup(self, tokens: list[int], chain: BlockChain) -> list[int]:
        """The blocks of the longest cached prefix that leaves a token to compute."""
        hits: list[int] = []
        chain.grow(tokens, len(tokens))
        for digest in chain.digests[: (len(tokens) - 1) // self.block_size]:
            block = self._table.find(digest)
            if block is None:
                break
            hits.append(block)
        return hits

    def _blocks_for(self, length: int) -> int:
        return -(-length // self.block_size)

    def _hold(self, block: int) -> None:
        if not self._holders[block]:
            self._free.rescue(block)
            self._evictable -= 1  # only cached blocks are hit
        self._holders[block] += 1

    def _take(self) -> int:
        block = self._free.take()
        assert not self._holders[block]
        self._holders[block] = 1
        digest = self._table.drop(block)
        if digest is not None:
            self._evicted += 1
            self._evictable -= 1
            self._events.append(BlockRemoved([wire_hash(digest, self._int_hashes)]))
        return block

    def _give_slots(self, sequence: KVSequence, hold: _Hold, end: int) -> None:
        size = self.block_size
        sequence.slots.extend(
            hold.blocks[position // size] * size + position % size for position in range(len(sequence.slots), end)
        )

    def _cache_full_blocks(self, sequence: KVSequence, hold: _Hold, end: int) -> None:
        """Cache and announce the blocks that the tokens up to `end` fill. Their KV is computed in this step."""
        first, full = hold.cached, end // self.block_size
        if full <= first:
            return
        hold.chain.grow(sequence.tokens, end)
        for number in range(first, full):
            self._table.add(hold.chain.digests[number], hold.blocks[number])
        hold.cached = full
        self._events.append(hold.chain.stored(sequence.tokens, first, full, self._int_hashes))


@dataclass(eq=False)
class _Hold:
    """What a running sequence holds: its blocks in order, of which the first `cached` are in the table."""

    chain: BlockChain
    blocks: list[int] = field(default_factory=list)
    cached: int = 0
    prefill_end: int = 0
