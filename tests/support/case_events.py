"""The cases' events and batches in the wire form of the engine they come from."""

from __future__ import annotations

from typing import Any

from tests.support.publisher import batch

NAMES = {
    "parent": "parent_block_hash",
    "lora": "lora_name",
    "group": "group_idx",
    "kind": "kv_cache_spec_kind",
    "window": "kv_cache_spec_sliding_window",
}
REMARKS = frozenset({"truth", "truth_lora"})


def payload(events: list[dict[str, Any]], ts: float) -> bytes:
    """A batch of a case's events."""
    return batch(ts, [wire_event(event) for event in events])


def wire_event(event: dict[str, Any]) -> dict[str, Any]:
    """A case's event under the names of the wire, `{"hex": ...}` as bytes; remarks for readers are left out."""
    named = {NAMES.get(key, key): value for key, value in event.items() if key not in REMARKS}
    if named.get("group_idx", 0) is None:
        del named["group_idx"]
    if "block_hashes" in named:
        named["block_hashes"] = [_hash(one) for one in named["block_hashes"]]
    if "parent_block_hash" in named:
        named["parent_block_hash"] = _hash(named["parent_block_hash"])
        named.setdefault("lora_id", None)
    return named


def _hash(value: Any) -> Any:
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value
