"""Two engines' KV events against each other: the same blocks stored and removed, in the same order.

Sampled tokens differ between a real engine and the CPU engine, and so do hashes of blocks that hold some. So a hash
counts by its rank of first appearance in its own stream: what is equal there is equal but for the names of blocks. How
the blocks are spread over events and batches is left out, it depends on when a step ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

from deploy.engine.settings import Face
from engine.wire import decode
from index.event import AllBlocksCleared, BlockRemoved, BlockStored, EngineHash, KVEvent
from index.worker import EngineKind


class BlockChange(NamedTuple):
    """A block stored or removed: its hash, its parent's (None: removed, or a root), and its content when stored."""

    stored: bool
    block: EngineHash
    parent: EngineHash | None
    content: tuple[object, ...]


class Counted(NamedTuple):
    """What a run of changes comes to."""

    stored: int
    removed: int


def changes(payloads: Iterable[bytes], face: Face) -> list[BlockChange]:
    """Every block that the batches tell of, in order. Clears are left out: each engine tells of its start at its time.

    ValueError for an event that cannot be read.
    """
    kind = EngineKind(face)
    return [change for payload in payloads for event in decode(payload, kind).events for change in _changes(event)]


def counted(run: Sequence[BlockChange]) -> Counted:
    """How many blocks of either kind."""
    kinds = Counter(change.stored for change in run)
    return Counted(kinds[True], kinds[False])


class Names:
    """Hashes as ranks of first appearance, over all of a stream."""

    def __init__(self) -> None:
        self._ranks: dict[EngineHash, int] = {}

    def ranked(self, run: Iterable[BlockChange]) -> list[tuple[bool, int, int | None, int]]:
        """Stored or not, the block, its parent, and how many parts its content has."""
        return [
            (
                change.stored,
                self._rank(change.block),
                None if change.parent is None else self._rank(change.parent),
                len(change.content),
            )
            for change in run
        ]

    def _rank(self, block: EngineHash) -> int:
        return self._ranks.setdefault(block, len(self._ranks))


def first_difference(one: Sequence[object], other: Sequence[object]) -> str | None:
    """Where two runs part, in words; None when they are equal."""
    for at, pair in enumerate(zip_longest(one, other)):
        if pair[0] != pair[1]:
            return f"change {at} of {len(one)}/{len(other)}: {pair[0]} against {pair[1]}"
    return None


def _changes(event: KVEvent) -> Iterator[BlockChange]:
    match event:
        case BlockStored():
            yield from _stored(event)
        case BlockRemoved():
            for block in event.block_hashes:
                yield BlockChange(False, block, None, (event.medium,))
        case AllBlocksCleared():
            return
        case _:
            raise ValueError(f"an event that cannot be read: {event}")


def _stored(event: BlockStored) -> Iterator[BlockChange]:
    width = len(event.tokens) // len(event.block_hashes)
    parent = event.parent
    for at, block in enumerate(event.block_hashes):
        extra = None if event.extra_keys is None else event.extra_keys[at]
        tokens = event.tokens[at * width : (at + 1) * width]
        yield BlockChange(
            True, block, parent, (event.medium, event.block_size, event.cache_salt, extra, event.kind, tokens)
        )
        parent = block
