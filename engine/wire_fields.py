"""The fields of a KV event, each checked and brought to the index's form.

A field arrives as whatever MessagePack held. Every function here either returns its value or raises `FieldError`.
Booleans and floats are never integers. Lists are checked by C calls (`msgspec.convert`, `array`), not block by block.
"""

from __future__ import annotations

import sys
from array import array
from itertools import chain
from types import NoneType
from typing import cast

import msgspec

from index.event import EngineHash, ExtraKey
from index.worker import Medium

MAX_HASH_BYTES = 64
MAX_BLOCK_SIZE = 2**20


class FieldError(Exception):
    """A field that cannot be used. `reason` is the label of the `SkippedEvent` it leads to."""

    def __init__(self, reason: str = "malformed") -> None:
        super().__init__(reason)
        self.reason = reason


def block_hashes(value: object) -> list[EngineHash]:
    """Integers (-2^63..2^64-1, all that MessagePack can hold) or 1..64 bytes; the list can be empty, never missing."""
    if type(value) is not list:
        raise FieldError
    try:
        return cast(list[EngineHash], msgspec.convert(value, list[int]))
    except msgspec.ValidationError:
        return [block_hash(item) for item in value]


def block_hash(value: object) -> EngineHash:
    """One hash: an integer or 1..64 bytes."""
    if type(value) is int or (type(value) is bytes and 1 <= len(value) <= MAX_HASH_BYTES):
        return value
    raise FieldError


def token_bytes(value: object) -> tuple[bytes, bool]:
    """Token ids as little-endian u32, and whether they are pairs (SGLang with EAGLE: one unit is 8 bytes)."""
    if type(value) is not list:
        raise FieldError
    pairs = bool(value) and type(value[0]) is list
    if pairs:
        if set(map(type, value)) != {list} or set(map(len, value)) != {2}:
            raise FieldError
        value = list(chain.from_iterable(value))
    try:
        ids = array("I", msgspec.convert(value, list[int]))
    except msgspec.ValidationError:
        raise FieldError from None
    except OverflowError:
        raise FieldError("token_range") from None
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tobytes(), pairs


def block_size(value: object) -> int:
    """Tokens per block, 0 (offload placeholders) to 2^20; never missing."""
    size = count(value, MAX_BLOCK_SIZE)
    if size is None:
        raise FieldError
    return size


def count(value: object, limit: int) -> int | None:
    """An integer from 0 to `limit`, None when not sent."""
    if value is None or (type(value) is int and 0 <= value <= limit):
        return value
    raise FieldError


def text(value: object) -> str | None:
    """A string; both nil and the empty string mean none."""
    if value is None or type(value) is str:
        return value or None
    raise FieldError


def lora_name(name: object, number: object) -> str | None:
    """The adapter's name, None for the base model.

    Releases before `lora_name` sent only a number (from 1). It gets a name that no request asks for: these blocks
    must not count for the base model, and their children still find their parents.
    """
    known = text(name)
    if known is not None or number is None or (type(number) is int and number == 0):
        return known
    if type(number) is not int:
        raise FieldError
    return f"lora_id={number}"


_MEDIA = {
    "gpu": Medium.GPU,
    "cpu": Medium.CPU,
    "cpu_pinned": Medium.CPU,
    "disk": Medium.DISK,
    "storage": Medium.DISK,
    "fs": Medium.DISK,
    "file": Medium.DISK,
    "filesystem": Medium.DISK,
    "ssd": Medium.DISK,
    "nvme": Medium.DISK,
}


def medium(value: object) -> Medium:
    """Any spelling of a tier. Missing means GPU (older forms); a name that is not known is never GPU."""
    if value is None:
        return Medium.GPU
    if type(value) is not str:
        raise FieldError
    return _MEDIA.get(value.casefold(), Medium.OTHER)


def is_remote(locality: object) -> bool:
    """Whether the block lies outside the publisher (vLLM `locality`: LOCAL, REMOTE or not said)."""
    known = text(locality)
    return known is not None and known.casefold() == "remote"


def extra_keys(value: object) -> list[tuple[ExtraKey, ...] | None] | None:
    """Per block what else went into its hash (vLLM `to_event_extra_keys`), None for a block without.

    The list can differ in length from `block_hashes`; then the two cannot be paired.
    """
    if value is None:
        return None
    if type(value) is not list:
        raise FieldError
    if value.count(None) == len(value):
        return cast(list[tuple[ExtraKey, ...] | None], value)
    if not set(map(type, value)) <= {list, NoneType}:
        raise FieldError
    return [tuple(map(_extra_key, keys)) if keys else None for keys in value]


def _extra_key(value: object) -> ExtraKey:
    """A LoRA name, salt or digest, or [multimodal identifier, offset]; the offset can be negative."""
    if type(value) is str or type(value) is bytes:
        return value
    if type(value) is list and len(value) == 2 and type(value[0]) is str and type(value[1]) is int:
        return value[0], value[1]
    raise FieldError
