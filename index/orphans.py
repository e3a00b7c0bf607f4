"""Stored blocks whose parent is not known: parked in bounded number, never filed at the root."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from index.event import BlockStored, EngineHash
from index.worker import Medium

MAX_EVENTS = 256
MAX_BYTES = 16 * 1024 * 1024


@dataclass(slots=True)
class Orphan:
    """A parked store and those of its hashes that were removed meanwhile."""

    event: BlockStored
    gone: list[EngineHash] = field(default_factory=list)
    left: Counter[EngineHash] = field(default_factory=Counter)


@dataclass(slots=True)
class Orphans:
    """The parked events of one worker, oldest dropped first."""

    _parked: OrderedDict[int, Orphan] = field(default_factory=OrderedDict)
    _by_parent: dict[EngineHash, list[int]] = field(default_factory=dict)
    _by_hash: dict[EngineHash, list[int]] = field(default_factory=dict)
    _next: int = 0
    _bytes: int = 0

    def __len__(self) -> int:
        return len(self._parked)

    @property
    def size_bytes(self) -> int:
        """Token bytes that are parked."""
        return self._bytes

    def park(self, event: BlockStored) -> None:
        """Keep `event` until its parent comes; beyond the bounds the oldest goes."""
        if event.parent is None or event.parent in event.block_hashes:
            return
        number, self._next = self._next, self._next + 1
        self._parked[number] = Orphan(event, left=Counter(event.block_hashes))
        self._by_parent.setdefault(event.parent, []).append(number)
        for block in self._parked[number].left:
            self._by_hash.setdefault(block, []).append(number)
        self._bytes += len(event.tokens)
        while self._parked and (len(self._parked) > MAX_EVENTS or self._bytes > MAX_BYTES):
            self._take(next(iter(self._parked)))

    def removed(self, block: EngineHash, slot: tuple[int, Medium]) -> bool:
        """Note that a block parked for (group, medium) was removed; False when no copy of it is left there."""
        for number in self._by_hash.get(block, ()):
            orphan = self._parked[number]
            here = (orphan.event.group, orphan.event.medium) == slot
            if here and orphan.left[block] > 0:
                orphan.left[block] -= 1
                orphan.gone.append(block)
                return True
        return False

    def adopt(self, parents: Iterable[EngineHash]) -> list[Orphan]:
        """Take out the events that wait for one of `parents`, in the order they came."""
        if not self._parked:
            return []
        numbers = sorted({number for parent in parents for number in self._by_parent.get(parent, ())})
        return [self._take(number) for number in numbers]

    def clear(self) -> None:
        """Forget everything parked."""
        self._parked.clear()
        self._by_parent.clear()
        self._by_hash.clear()
        self._bytes = 0

    def _take(self, number: int) -> Orphan:
        orphan = self._parked.pop(number)
        assert orphan.event.parent is not None
        _drop(self._by_parent, orphan.event.parent, number)
        for block in orphan.left:
            _drop(self._by_hash, block, number)
        self._bytes -= len(orphan.event.tokens)
        return orphan


def _drop(table: dict[EngineHash, list[int]], key: EngineHash, number: int) -> None:
    numbers = table.get(key)
    if numbers is None:
        return
    if number in numbers:
        numbers.remove(number)
    if not numbers:
        del table[key]
