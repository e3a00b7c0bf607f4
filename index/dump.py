"""What a worker holds as plain values: for a snapshot, and per batch what was applied, so that it can be done again.

Both hold request keys and engine hashes, for vLLM no tokens. Doing the same operations on equal holdings gives equal
holdings, on any replica (docs/adr/0007).
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from index.event import EngineHash
from index.group_rules import GroupSpec

Operation = tuple[object, ...]
"""One applied event. vLLM: ("S", group, medium, kind, window, block_size, hashes, keys, keyless), ("R", group,
medium, hashes), ("C",); and ("B", group, kind, window, block_size) where a store made that size certain. SGLang:
("s", medium, parent, namespace, page_size, bigrams, hashes, tokens), ("r", medium, hashes), ("C",). `keys` are
joined, 8 bytes each, for the leading hashes; `keyless` are hashes whose meaning is still to come."""

Recorded = Operation | msgspec.Raw
"""An operation as a value, or packed as the native core recorded it."""


class SlotDump(NamedTuple):
    """One (group, medium): hashes with their keys (joined, 8 bytes each), hashes without, and counts above one."""

    group: int
    medium: int
    hashes: list[EngineHash]
    keys: bytes
    keyless: list[EngineHash]
    counts: dict[EngineHash, int]


class BlockDump(NamedTuple):
    """A vLLM worker's holdings. `whole` is False when stores wait for a parent: these are not in here.

    `settled` are the groups whose block size is certain; state that was stored before there was this does not tell.
    """

    block_size: int
    groups: list[GroupSpec]
    partial_unit: int | None
    slots: list[SlotDump]
    whole: bool
    settled: list[int] = []  # noqa: RUF012


class RunDump(NamedTuple):
    """A run of SGLang pages in one medium: below `parent`, or at the root of `namespace`."""

    medium: int
    parent: int | None
    namespace: str
    hashes: bytes
    tokens: bytes


class RadixDump(NamedTuple):
    """An SGLang worker's holdings, parents before children. `hashes` are signed int64, 8 bytes each, little-endian.

    `reloaded` are the adapters that the engine loaded again since its start; what it stored before counts no more.
    """

    page_size: int
    bigrams: bool
    genuine: bool
    runs: list[RunDump]
    copies: dict[int, int]
    whole: bool
    reloaded: list[str] = []  # noqa: RUF012


Dump = BlockDump | RadixDump


def unpacked(recorded: Recorded) -> Operation:
    """An operation as a value."""
    return tuple(msgspec.msgpack.decode(recorded)) if isinstance(recorded, msgspec.Raw) else recorded
