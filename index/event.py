"""KV events as plain values: what one engine says about one worker's cache, after the wire is understood."""

from __future__ import annotations

from typing import NamedTuple

from index.worker import Medium

EngineHash = int | bytes
"""A block hash as the engine sent it: an opaque handle for parents and removals, never compared across domains."""

ExtraKey = str | bytes | tuple[str, int]
"""An untagged extra key of a block (vLLM `to_event_extra_keys`): LoRA name, salt, digest, (identifier, offset)."""


class BlockStored(NamedTuple):
    """Blocks that now lie in `medium`, in prefix order.

    `tokens` are little-endian u32 ids, 4 bytes each; with `bigrams` each unit is a pair, 8 bytes (SGLang EAGLE).
    For sliding-window and Mamba groups `block_hashes` may be shorter than the token range (vLLM leaves out blocks
    it does not keep), even empty; then hashes cannot be paired with token slices by position alone.
    """

    block_hashes: list[EngineHash]
    parent: EngineHash | None
    tokens: bytes
    block_size: int
    medium: Medium = Medium.GPU
    lora_name: str | None = None
    extra_keys: list[tuple[ExtraKey, ...] | None] | None = None
    group: int = 0
    kind: str | None = None
    window: int | None = None
    cache_salt: str | None = None
    bigrams: bool = False


class BlockRemoved(NamedTuple):
    """One physical copy of each block left `medium`; in another group or tier it may still be held."""

    block_hashes: list[EngineHash]
    medium: Medium = Medium.GPU
    group: int = 0


class AllBlocksCleared(NamedTuple):
    """The worker's cache is empty: all tiers, all groups."""


class SkippedEvent(NamedTuple):
    """An event that could not be used. `reason` is a short label (no text from the wire).

    `lossy` tells whether its effect on the cache is lost (a malformed store) or there is none (a remote block).
    """

    reason: str
    lossy: bool


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared | SkippedEvent


class EventBatch(NamedTuple):
    """One message of the event stream. `ts` is the engine's clock in seconds; `dp_rank` is None in old forms."""

    ts: float
    events: list[KVEvent]
    dp_rank: int | None
