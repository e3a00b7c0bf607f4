"""Who holds KV: the names of workers, engines, tiers and degrees of trust that every room shares."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import NamedTuple


class EngineKind(StrEnum):
    """The two kinds of engine whose KV events are understood."""

    VLLM = "vllm"
    SGLANG = "sglang"


class Medium(IntEnum):
    """Where a block lies, fastest first. `OTHER` is any name that is not known: lowest weight, never GPU."""

    GPU = 0
    CPU = 1
    DISK = 2
    OTHER = 3


class Trust(StrEnum):
    """How much of an engine's history the index has seen."""

    EXACT = "exact"
    PARTIAL = "partial"
    NONE = "none"


class Worker(NamedTuple):
    """One KV cache: a data-parallel rank of an instance."""

    instance: str
    dp_rank: int
