"""KV events as the engines put them on the wire: vLLM 0.32.0 and SGLang 0.5.22, maps with the key `type` first.

Sources: vllm/distributed/kv_events.py, sglang/srt/disaggregation/kv_events.py.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

import msgspec

from index.event import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent, SkippedEvent

WireEvent = dict[str, object]
EventForm = Callable[[KVEvent], WireEvent]


def batch(ts: float, events: Sequence[KVEvent], rank: int, form: EventForm) -> bytes:
    """The payload of one message."""
    return msgspec.msgpack.encode([ts, [form(event) for event in events], rank])


def vllm_form(adapters: Sequence[str] = ()) -> EventForm:
    """vLLM's form. The position of an adapter's name, from 1, is its `lora_id`."""
    numbers = {name: number for number, name in enumerate(adapters, start=1)}

    def event_map(event: KVEvent) -> WireEvent:
        match event:
            case BlockStored():
                return _vllm_stored(event, numbers)
            case BlockRemoved():
                return {
                    "type": "BlockRemoved",
                    "block_hashes": event.block_hashes,
                    "medium": event.medium.name,
                    "group_idx": event.group,
                }
            case AllBlocksCleared():
                return {"type": "AllBlocksCleared"}
            case SkippedEvent():
                raise AssertionError(event)
            case _:
                assert_never(event)

    return event_map


def sglang_form(event: KVEvent) -> WireEvent:
    """SGLang's form; the names of adapters are there only if the cache says them ("format": "dynamo")."""
    match event:
        case BlockStored():
            named = {"cache_salt": event.cache_salt, "lora_name": event.lora_name}
            stored: WireEvent = {
                "type": "BlockStored",
                "block_hashes": event.block_hashes,
                "parent_block_hash": event.parent,
                "token_ids": _pairs(event.tokens) if event.bigrams else array("I", event.tokens).tolist(),
                "block_size": event.block_size,
                "lora_id": None,
                "medium": event.medium.name,
            }
            return stored | {name: value for name, value in named.items() if value is not None}
        case BlockRemoved():
            return {"type": "BlockRemoved", "block_hashes": event.block_hashes, "medium": event.medium.name}
        case AllBlocksCleared():
            return {"type": "AllBlocksCleared"}
        case SkippedEvent():
            raise AssertionError(event)
        case _:
            assert_never(event)


def _vllm_stored(event: BlockStored, numbers: Mapping[str, int]) -> WireEvent:
    stored: WireEvent = {
        "type": "BlockStored",
        "block_hashes": event.block_hashes,
        "parent_block_hash": event.parent,
        "token_ids": array("I", event.tokens).tolist(),
        "block_size": event.block_size,
        "lora_id": numbers.get(event.lora_name) if event.lora_name is not None else None,
        "medium": event.medium.name,
        "lora_name": event.lora_name,
    }
    if event.extra_keys is not None:
        stored["extra_keys"] = event.extra_keys
    return stored | {"group_idx": event.group, "kv_cache_spec_kind": event.kind}


def _pairs(tokens: bytes) -> list[list[int]]:
    flat = array("I", tokens).tolist()
    return [flat[at : at + 2] for at in range(0, len(flat), 2)]
