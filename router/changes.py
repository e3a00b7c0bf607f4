"""What changed since somebody looked last: a bounded list of names, read from any number of places."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T")
_KEPT = 1024


class Changes(Generic[T]):
    """Remembers the last `_KEPT` changes. Each reader keeps the `count` it has read up to."""

    def __init__(self) -> None:
        self.count = 0
        self._last: deque[T] = deque(maxlen=_KEPT)

    def note(self, what: T) -> None:
        """`what` is not as it was."""
        self.count += 1
        self._last.append(what)

    def since(self, count: int) -> list[T] | None:
        """What changed after `count`, perhaps more than once; None: so much that all of it may have."""
        new = self.count - count
        if new == 1:
            return [self._last[-1]]
        return None if new > len(self._last) else list(islice(reversed(self._last), new))
