"""Good events as maps, and how tests ask what they decode to."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.wire import decode
from index.event import KVEvent
from index.worker import EngineKind

STORED: dict[str, Any] = {
    "type": "BlockStored",
    "block_hashes": [11, 2**64 - 2],
    "parent_block_hash": 7,
    "token_ids": [1, 2, 3, 2**32 - 1],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
    "extra_keys": [["salt", ["img", 1]], None],
    "group_idx": 1,
    "kv_cache_spec_kind": "sliding_window",
    "kv_cache_spec_sliding_window": 128,
}
REMOVED: dict[str, Any] = {"type": "BlockRemoved", "block_hashes": [11, b"\x01" * 32], "medium": "CPU", "group_idx": 1}
CLEARED: dict[str, Any] = {"type": "AllBlocksCleared"}


def events_of(*events: Any, engine: EngineKind = EngineKind.VLLM) -> list[KVEvent]:
    """What these events, in whatever form, decode to in one batch."""
    return decode(msgspec.msgpack.encode([1.0, events, 0]), engine).events
