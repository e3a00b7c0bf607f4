"""The last values by id, oldest first, for many ids: without an OrderedDict, whose growth stops everything for long."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")
_MOST_GONE = 1024


class Recent(Generic[T]):
    """Values in the order in which their ids were added.

    Adding, reading and taking away cost the same for any number of them, but for a copy of the ids now and then. An
    OrderedDict of 100,000 looks up every key when it grows, and again whenever as many have come and gone.
    """

    def __init__(self) -> None:
        self._values: dict[str, T] = {}
        self._order: deque[str] = deque()
        self._gone: set[str] = set()
        """Ids in the order that have no value any more."""

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def get(self, name: str) -> T | None:
        """The value of an id."""
        return self._values.get(name)

    def add(self, name: str, value: T) -> None:
        """A value for an id, which becomes the newest; one that it had is replaced."""
        if name in self._values or name in self._gone:
            self._order.remove(name)
            self._gone.discard(name)
        self._values[name] = value
        self._order.append(name)

    def pop(self, name: str) -> T | None:
        """Take an id away, if it is there; its value."""
        value = self._values.pop(name, None)
        if value is not None:
            self._gone.add(name)
            if len(self._gone) > len(self._values) + _MOST_GONE:
                self._order = deque(name for name in self._order if name not in self._gone)
                self._gone.clear()
        return value

    def oldest(self) -> str | None:
        """The id that was added first; None when there is none."""
        while self._order:
            name = self._order[0]
            if name not in self._gone:
                return name
            self._order.popleft()
            self._gone.discard(name)
        return None
