"""The radix cache's KV events: one per new or evicted leaf, joined with the one before where SGLang joins them.

Mirrors sglang/srt/mem_cache/events.py:KVCacheEventRecorder (0.5.22).
"""

from __future__ import annotations

from collections.abc import Mapping

from deploy.engine.radix_node import RadixNode
from index.event import AllBlocksCleared, BlockRemoved, BlockStored, EngineHash, KVEvent
from index.page_hash import namespaced, page_hashes, wire_int64

LORA_ID_LENGTH = 32


class RadixEvents:
    """Events in order since the last `take`. `dynamo` puts the namespace into the hashes and names the adapter.

    `lora_names` gives the adapter's name for the id at the end of an extra key; it may grow.
    """

    def __init__(self, page_size: int, unit_bytes: int, *, dynamo: bool, lora_names: Mapping[str, str]) -> None:
        self._page_size = page_size
        self._page_bytes = page_size * unit_bytes
        self._bigrams = unit_bytes == 8
        self._dynamo = dynamo
        self._lora_names = lora_names
        self._queue: list[KVEvent] = []

    def stored(self, leaf: RadixNode) -> None:
        """A leaf was added; hashes its pages."""
        parent = leaf.parent
        assert parent is not None
        before = parent.digests[-1] if parent.digests else None
        leaf.digests = page_hashes(leaf.key, self._page_bytes, leaf.namespace.cache_salt, parent=before)
        hashes = self._wire(leaf, leaf.digests)
        tail = self._queue[-1] if self._queue else None
        above = self._wire(parent, parent.digests[-1:])
        if isinstance(tail, BlockStored) and above == tail.block_hashes[-1:]:
            self._queue[-1] = tail._replace(block_hashes=tail.block_hashes + hashes, tokens=tail.tokens + leaf.key)
        else:
            self._queue.append(self._event(leaf, hashes, above[0] if above else None))

    def removed(self, leaf: RadixNode) -> None:
        """A leaf was evicted."""
        hashes = self._wire(leaf, leaf.digests)
        tail = self._queue[-1] if self._queue else None
        if isinstance(tail, BlockRemoved):
            tail.block_hashes.extend(hashes)
        else:
            self._queue.append(BlockRemoved(hashes))

    def cleared(self) -> None:
        """The tree was built or reset."""
        self._queue.append(AllBlocksCleared())

    def take(self) -> list[KVEvent]:
        """What happened since the last call."""
        events, self._queue = self._queue, []
        return events

    def _wire(self, node: RadixNode, digests: list[bytes]) -> list[EngineHash]:
        plain = (wire_int64(digest) for digest in digests)
        if not self._dynamo:
            return list(plain)
        space = node.namespace
        return [namespaced(wire, space.extra_key, space.cache_salt) for wire in plain]

    def _event(self, leaf: RadixNode, hashes: list[EngineHash], parent: EngineHash | None) -> BlockStored:
        lora_id = (leaf.namespace.extra_key or "")[-LORA_ID_LENGTH:]
        return BlockStored(
            hashes,
            parent,
            leaf.key,
            self._page_size,
            lora_name=self._lora_names.get(lora_id) if self._dynamo else None,
            cache_salt=leaf.namespace.cache_salt,
            bigrams=self._bigrams,
        )
