"""KV event payloads of vLLM and SGLang, every known release, decoded to plain values.

Sources: vLLM `distributed/kv_events.py`, SGLang `disaggregation/kv_events.py`. Both send one MessagePack batch per
message: an array `[ts, events, rank]` (older: no rank; one vLLM snapshot: a map). Events are maps with the key `type`
or, in older releases, positional arrays with the tag first. Unknown keys and types, missing and extra trailing items
are tolerated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from engine.wire_fields import (
    FieldError,
    block_hash,
    block_hashes,
    block_size,
    count,
    extra_keys,
    is_remote,
    lora_name,
    medium,
    text,
    token_bytes,
)
from index.event import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, KVEvent, SkippedEvent
from index.worker import EngineKind

MAX_GROUP = 2**16 - 1
MAX_WINDOW = 2**31 - 1


class WireError(Exception):
    """A payload that is unusable as a whole: the effect of its events is lost.

    `reason` is a short label: `bad_msgpack`, `too_deep`, `not_a_batch`, `bad_ts`, `bad_events` or `bad_rank`.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def decode(payload: bytes, engine: EngineKind) -> EventBatch:
    """Decode one message. Raises only `WireError`.

    The answer has one entry per event on the wire, in order. An event that cannot be used is a `SkippedEvent` for one
    of the reasons `malformed`, `token_range` (lossy), `unknown_type`, `remote` (no effect on the worker). Work and
    memory grow with the length of the payload only; the caller bounds that.
    """
    ts, events, rank = _envelope(_unpack(payload))
    if type(events) is not list:
        raise WireError("bad_events")
    return EventBatch(_timestamp(ts), [_event(event, engine) for event in events], _rank(rank))


def sglang_usable(version: str) -> str | None:
    """Why the KV events of an SGLang release cannot be used, None when they can or the version says nothing.

    Before 0.5.6 each page is hashed alone (`hash(tuple(page))`, no parent), so a hash does not stand for a prefix.
    """
    release = _RELEASE.match(version)
    if release is None:
        return None
    major, minor, patch = (int(part or 0) for part in release.groups())
    untagged_build = (major, minor, patch) == (0, 0, 0)
    if untagged_build or (major, minor, patch) >= (0, 5, 6):
        return None
    return f"SGLang {release.group().lstrip('v')} hashes pages without their prefix; KV events need 0.5.6 or later"


_RELEASE = re.compile(r"v?(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?")

_Fields = Mapping[Any, object]
_STORED = ("type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium")
_POSITIONS: Mapping[EngineKind, Mapping[str, tuple[str, ...]]] = {
    EngineKind.VLLM: {
        "BlockStored": (
            *_STORED,
            "lora_name",
            "extra_keys",
            "group_idx",
            "kv_cache_spec_kind",
            "kv_cache_spec_sliding_window",
        ),
        "BlockRemoved": ("type", "block_hashes", "medium", "group_idx"),
    },
    EngineKind.SGLANG: {
        "BlockStored": (*_STORED, "optional"),
        "BlockRemoved": ("type", "block_hashes", "medium"),
    },
}
"""Field names of the positional form. `optional` is SGLang's map of fields that are present only when set."""


def _unpack(payload: bytes) -> object:
    try:
        return msgspec.msgpack.decode(payload)
    except RecursionError:
        raise WireError("too_deep") from None
    except (msgspec.MsgspecError, ValueError, OverflowError):
        raise WireError("bad_msgpack") from None


def _envelope(batch: object) -> tuple[object, object, object]:
    if type(batch) is list and len(batch) >= 2:
        return batch[0], batch[1], batch[2] if len(batch) > 2 else None
    if type(batch) is dict:
        return batch.get("ts"), batch.get("events"), batch.get("data_parallel_rank", batch.get("attn_dp_rank"))
    raise WireError("not_a_batch")


def _timestamp(value: object) -> float:
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        return float(value)
    raise WireError("bad_ts")


def _rank(value: object) -> int | None:
    if value is None or (type(value) is int and value >= 0):
        return value
    raise WireError("bad_rank")


def _event(raw: object, engine: EngineKind) -> KVEvent:
    try:
        fields = _fields(raw, engine)
        match fields.get("type"):
            case "BlockStored":
                return _stored(fields, engine)
            case "BlockRemoved":
                return _removed(fields)
            case "AllBlocksCleared":
                return AllBlocksCleared()
            case str():
                return SkippedEvent("unknown_type", lossy=False)
            case _:
                return SkippedEvent("malformed", lossy=True)
    except FieldError as error:
        return SkippedEvent(error.reason, lossy=True)


def _fields(raw: object, engine: EngineKind) -> _Fields:
    """Both forms of an event as a map."""
    if type(raw) is dict:
        return raw
    if type(raw) is not list or not raw or type(raw[0]) is not str:
        raise FieldError
    fields = dict(zip(_POSITIONS[engine].get(raw[0], ("type",)), raw, strict=False))
    optional = fields.get("optional")
    if optional is None:
        return fields
    if type(optional) is not dict:
        raise FieldError
    return {**optional, **fields}


def _stored(fields: _Fields, engine: EngineKind) -> KVEvent:
    if is_remote(fields.get("locality")):
        return SkippedEvent("remote", lossy=False)
    vllm = engine is EngineKind.VLLM
    parent = fields.get("parent_block_hash")
    tokens, bigrams = token_bytes(fields.get("token_ids"))
    size = block_size(fields.get("block_size"))
    if (bigrams and vllm) or (tokens and not size):
        raise FieldError
    return BlockStored(
        block_hashes=block_hashes(fields.get("block_hashes")),
        parent=None if parent is None else block_hash(parent),
        tokens=tokens,
        block_size=size,
        medium=medium(fields.get("medium")),
        lora_name=lora_name(fields.get("lora_name"), fields.get("lora_id")),
        extra_keys=extra_keys(fields.get("extra_keys")) if vllm else None,
        group=count(fields.get("group_idx"), MAX_GROUP) or 0,
        kind=text(fields.get("kv_cache_spec_kind")),
        window=count(fields.get("kv_cache_spec_sliding_window"), MAX_WINDOW),
        cache_salt=None if vllm else text(fields.get("cache_salt")),
        bigrams=bigrams,
    )


def _removed(fields: _Fields) -> KVEvent:
    if is_remote(fields.get("locality")):
        return SkippedEvent("remote", lossy=False)
    return BlockRemoved(
        block_hashes=block_hashes(fields.get("block_hashes")),
        medium=medium(fields.get("medium")),
        group=count(fields.get("group_idx"), MAX_GROUP) or 0,
    )
