"""Values that pass between the block-hash index and its storage, alike for both cores."""

from __future__ import annotations

from typing import NamedTuple

from index.event import EngineHash
from index.request_key import RequestKey
from index.worker import Medium

Slot = tuple[int, Medium]
"""(group, medium): holdings in one do not touch another."""

Walked = tuple[int, int, int, int, int, int]
"""A worker's number, its leading blocks, and these by their fastest medium (gpu, cpu, disk, other)."""


class Run(NamedTuple):
    """Blocks of one store in prefix order, below `parent`. `tokens` are equally many bytes for every hash.

    `extras` are the extra keys per hash, joined (`request_key.joined_extra`), empty for none; None when there are none.
    """

    hashes: list[EngineHash]
    tokens: bytes
    parent: RequestKey
    extras: list[bytes] | None


class Filed(NamedTuple):
    """What filing a run did: `filed` hashes came through, `stored` of them are new holdings."""

    filed: int
    stored: int
    conflict: bool


class SlotHoldings(NamedTuple):
    """What one (group, medium) holds: hashes with their keys (joined), hashes without, and counts above one."""

    slot: Slot
    hashes: list[EngineHash]
    keys: bytes
    keyless: list[EngineHash]
    counts: dict[EngineHash, int]
