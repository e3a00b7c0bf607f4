"""Log entries that wait for the state store, in order and within bounds."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from app.state_limits import WriterLimits
from index.worker import Worker
from store.state import Entry


@dataclass(slots=True)
class StateQueue:
    """First in, first out. What was taken for writing stays in front until it is `done`."""

    limits: WriterLimits
    _entries: deque[Entry] = field(default_factory=deque)
    _bytes: int = 0

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, entry: Entry) -> bool:
        """Add an entry. False: there are more than the bounds allow."""
        self._entries.append(entry)
        self._bytes += len(entry.body)
        return len(self._entries) <= self.limits.queue_batches and self._bytes <= self.limits.queue_bytes

    def first(self, count: int) -> list[Entry]:
        """Up to `count` entries, which stay."""
        return list(islice(self._entries, count))

    def done(self, entry: Entry) -> None:
        """The entry in front was written, if it is still there."""
        if self._entries and self._entries[0] is entry:
            self._entries.popleft()
            self._bytes -= len(entry.body)

    def drop(self, worker: Worker) -> None:
        """Take out the entries of a worker."""
        if any(entry.worker == worker for entry in self._entries):
            self._keep([entry for entry in self._entries if entry.worker != worker])

    def clear(self) -> set[Worker]:
        """Take out everything; whose entries these were."""
        workers = {entry.worker for entry in self._entries}
        self._keep([])
        return workers

    def _keep(self, entries: Iterable[Entry]) -> None:
        self._entries = deque(entries)
        self._bytes = sum(len(entry.body) for entry in self._entries)
