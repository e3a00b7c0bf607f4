"""SGLang's prefix cache: a radix tree over the slots of a token (or page) pool.

Mirrors sglang/srt/mem_cache/radix_cache.py, common.py and allocation.py (0.5.22): a prefix is inserted after each chunk
of a prefill (when the next chunk is scheduled), after the last one, and at the end; duplicates are freed and the
sequence goes on with the tree's copy; leaves are evicted when slots are needed. Host tiers and sessions are left out.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass

from deploy.engine.cache import PLAIN, CacheStats, KVSequence, Namespace
from deploy.engine.eviction_policy import POLICIES
from deploy.engine.page_pool import PagePool
from deploy.engine.radix_events import RadixEvents
from deploy.engine.radix_node import RadixNode
from deploy.engine.radix_tree import RadixTree
from deploy.engine.slot_vectors import MakeVector, array_vector
from index.event import KVEvent
from index.radix_units import bigrams as as_bigrams


class RadixCache:
    """A `KVCache` of `slots` tokens, floored to whole pages.

    With `bigrams` (EAGLE) keys are pairs of tokens, and hits count pairs. `policy` is one of `POLICIES`. With `overlap`
    (SGLang's overlap scheduler, its default) a computed prompt is inserted when the next step is planned already: its
    first decode step takes its slot before, and a prefill planned right then does not find it.
    """

    def __init__(
        self,
        slots: int,
        page_size: int = 1,
        *,
        policy: str = "lru",
        bigrams: bool = False,
        overlap: bool = False,
        dynamo: bool = False,
        lora_names: Mapping[str, str] | None = None,
        vector: MakeVector = array_vector,
    ) -> None:
        unit_bytes = 8 if bigrams else 4
        self.page_size = page_size
        self.tree = RadixTree(unit_bytes, page_size, POLICIES[policy], vector)
        self._bigrams = bigrams
        self._overlap = overlap
        self._pool = PagePool(slots // page_size, page_size)
        self._running: dict[KVSequence, _Hold] = {}
        self._events = RadixEvents(page_size, unit_bytes, dynamo=dynamo, lora_names=lora_names or {})
        self._events.cleared()
        self._evicted = 0

    @property
    def slots_total(self) -> int:
        return (self._pool.pages + 1) * self.page_size

    def peek(self, tokens: list[int], namespace: Namespace = PLAIN) -> int:
        return self.tree.peek(self.units(tokens[:-1]), _known_part(namespace))

    def start(
        self,
        tokens: list[int],
        namespace: Namespace = PLAIN,
        *,
        limit: int | None = None,
        reuse: bool = True,
        prompt_length: int | None = None,
    ) -> KVSequence | None:
        assert tokens
        space = _known_part(namespace)
        node = self.tree.match(self.units(tokens[:-1]) if reuse else b"", space)
        self.tree.lock(node)
        slots = self.tree.slots(node)
        cached, rest = len(slots), len(tokens) - len(slots)
        sequence = KVSequence(
            list(tokens), len(tokens) if prompt_length is None else prompt_length, space, cached, cached, slots
        )
        if not self._allocate(sequence, rest if limit is None else min(rest, limit), prefill=True):
            self.tree.unlock(node)
            return None
        self._running[sequence] = _Hold(node, protected=cached, prefill_end=len(tokens))
        return sequence

    def extend(self, sequence: KVSequence, count: int) -> bool:
        assert not sequence.pending
        prefill = sequence.computed_tokens < self._running[sequence].prefill_end
        if prefill:
            self.checkpoint(sequence)
        return self._allocate(sequence, count, prefill=prefill)

    def checkpoint(self, sequence: KVSequence) -> None:
        hold = self._running[sequence]
        if hold.waits:
            self._insert(sequence, hold)

    def computed(self, sequence: KVSequence) -> None:
        hold = self._running[sequence]
        in_prefill = sequence.computed_tokens < hold.prefill_end
        sequence.computed_tokens = len(sequence.slots)
        ends = in_prefill and sequence.computed_tokens >= hold.prefill_end
        hold.waits = sequence.computed_tokens < hold.prefill_end or (self._overlap and (ends or hold.waits))
        if ends and not self._overlap:
            self._insert(sequence, hold)

    def finish(self, sequence: KVSequence, *, keep: bool = True) -> None:
        hold = self._running[sequence]
        if keep:
            self._insert(sequence, hold)
        del self._running[sequence]
        self._pool.give_back(sequence.slots[hold.protected :])
        self.tree.unlock(hold.node)

    def take_events(self) -> list[KVEvent]:
        return self._events.take()

    def clear(self) -> bool:
        if self._running:
            return False
        self.tree.clear()
        self._pool = PagePool(self._pool.pages, self.page_size)
        self._events.cleared()
        return True

    def stats(self) -> CacheStats:
        total, free, evictable = self._pool.pages * self.page_size, self._pool.free_slots, self.tree.evictable_size
        return CacheStats(total, total - free - evictable, evictable, free, self._evicted)

    def units(self, tokens: list[int]) -> bytes:
        """The tree's key for these tokens."""
        plain = array("I", tokens).tobytes()
        return as_bigrams(plain) if self._bigrams else plain

    def _allocate(self, sequence: KVSequence, count: int, *, prefill: bool) -> bool:
        """Slots for `count` more tokens: the rest of the last page first, then new pages.

        With pages more is evicted than is needed, as in SGLang: `alloc_paged_token_slots_extend` asks for the tokens
        and a page, `alloc_paged_token_slots_decode` for a page even when the last one has room.
        """
        assert count > 0
        size, start = self.page_size, len(sequence.slots)
        assert start + count <= len(sequence.tokens)
        pages = -(-(start + count) // size) - -(-start // size)
        if pages * size > self._pool.free_slots + self.tree.evictable_size:
            return False
        wanted = count if size == 1 else count + size if prefill else -(-count // size) * size
        self._evict(wanted - self._pool.free_slots)
        last = sequence.slots[-1] if start % size else 0
        rest = list(range(last + 1, last + 1 + -start % size))
        sequence.slots.extend((rest + self._pool.take(pages))[:count])
        return True

    def _evict(self, units: int) -> None:
        for leaf in self.tree.evict(units):
            self._pool.give_back(leaf.value.tolist())
            self._evicted += len(leaf)
            self._events.removed(leaf)

    def _insert(self, sequence: KVSequence, hold: _Hold) -> None:
        """Give what is computed to the tree, and go on with the tree's slots (`_insert_cache`, `checkpoint`)."""
        tree, space = self.tree, sequence.namespace
        units = tree.whole_pages(self.units(sequence.tokens[: sequence.computed_tokens]))
        length = len(units) // tree.unit_bytes
        known, leaf = tree.insert(units, sequence.slots, space, hold.inserted)
        if leaf is not None:
            self._events.stored(leaf)
        hold.inserted = max(hold.inserted, length)
        self._split_at_prompt(sequence, length)
        self._pool.give_back(sequence.slots[hold.protected : known])
        node = tree.match(units, space)
        sequence.slots[:length] = tree.slots(node)
        tree.lock(node)
        tree.unlock(hold.node)
        hold.node, hold.protected, hold.waits = node, length, False

    def _split_at_prompt(self, sequence: KVSequence, length: int) -> None:
        """So that eviction can drop the output without the prompt. Known units: the topology changes, nothing else."""
        prompt = self.tree.whole_pages(self.units(sequence.tokens[: sequence.prompt_length]))
        units = len(prompt) // self.tree.unit_bytes
        if 0 < units < length:
            self.tree.insert(prompt, sequence.slots, sequence.namespace, units)


@dataclass(eq=False)
class _Hold:
    """What a running sequence holds: the locked path to `node`, whose first `protected` units are the tree's.

    The slots after those are its own. `inserted` units were inserted by it; `waits` tells that a chunk of the prefill
    is computed and not inserted yet.
    """

    node: RadixNode
    protected: int
    prefill_end: int
    inserted: int = 0
    waits: bool = False


def _known_part(namespace: Namespace) -> Namespace:
    """SGLang's namespace; an empty text is none."""
    return Namespace(cache_salt=namespace.cache_salt or None, extra_key=namespace.extra_key or None)
