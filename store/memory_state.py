"""The store in memory (`memory://`): the same promises as in Redis, kept as long as the process lives."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

from index.worker import Worker
from store.format import storable
from store.offer_rules import Tip, judge
from store.state import (
    MAX_LOG_ENTRIES,
    Change,
    Deleted,
    Drained,
    Entry,
    Offer,
    Put,
    RegisteredInstance,
    Reread,
    Snapshot,
    StateError,
    Stored,
)

_MAX_CHANGES = 10_000


@dataclass
class _Contents:
    snapshots: dict[Worker, Snapshot] = field(default_factory=dict)
    logs: dict[Worker, list[Entry]] = field(default_factory=dict)
    instances: dict[str, RegisteredInstance] = field(default_factory=dict)
    changes: deque[tuple[int, int, Change]] = field(default_factory=lambda: deque(maxlen=_MAX_CHANGES))
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    last_change: int = 0
    replicas: count[int] = field(default_factory=count)


class MemoryState:
    """A `StateStore`. `sharing` makes it another replica over the same contents. Nothing expires."""

    def __init__(self, sharing: MemoryState | None = None) -> None:
        self._contents: _Contents = _Contents() if sharing is None else sharing._contents
        self._replica = next(self._contents.replicas)
        self._seen: int | None = None

    async def open(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do."""

    async def load(self, worker: Worker) -> Stored | None:
        """See `StateStore`."""
        snapshot = self._contents.snapshots.get(worker)
        return None if snapshot is None else Stored(snapshot, list(self._contents.logs[worker]))

    async def append(self, entries: Sequence[Entry]) -> list[bool | None]:
        """See `StateStore`."""
        return [self._appended(entry) for entry in entries]

    async def offer(self, snapshot: Snapshot) -> Offer:
        """See `StateStore`."""
        if not storable(snapshot):
            raise StateError("offer", "size", "a number is too large to be stored")
        tip = self._tip(snapshot.worker)
        answer = judge(tip, snapshot)
        if answer is Offer.ACCEPTED:
            same = tip is not None and tip.lineage == snapshot.lineage
            log = self._contents.logs.get(snapshot.worker, []) if same else []
            rest = [entry for entry in log if entry.seq > snapshot.seq]
            self._contents.snapshots[snapshot.worker] = snapshot._replace(fingerprint=snapshot.fingerprint or None)
            self._contents.logs[snapshot.worker] = rest
        return answer

    async def log_length(self, worker: Worker) -> int:
        """See `StateStore`."""
        return len(self._contents.logs.get(worker, ()))

    async def forget(self, worker: Worker) -> None:
        """See `StateStore`."""
        self._contents.snapshots.pop(worker, None)
        self._contents.logs.pop(worker, None)

    async def touch(self, workers: Iterable[Worker]) -> None:
        """Nothing to do."""

    async def workers(self) -> list[Worker]:
        """See `StateStore`."""
        return sorted(self._contents.snapshots)

    async def instances(self) -> dict[str, RegisteredInstance]:
        """See `StateStore`."""
        self._seen = self._contents.last_change
        return dict(self._contents.instances)

    async def put_instance(self, instance: RegisteredInstance) -> None:
        """See `StateStore`."""
        known = self._contents.instances.get(instance.id)
        if known is not None:
            instance = instance._replace(draining=known.draining)
        if instance != known:
            self._contents.instances[instance.id] = instance
            self._tell(Put(instance))

    async def delete_instance(self, id: str) -> None:
        """See `StateStore`."""
        self._contents.instances.pop(id, None)
        self._tell(Deleted(id))

    async def set_draining(self, id: str, draining: bool) -> None:
        """See `StateStore`."""
        known = self._contents.instances.get(id)
        if known is not None and known.draining == draining:
            return
        if known is not None:
            self._contents.instances[id] = known._replace(draining=draining)
        self._tell(Drained(id, draining))

    async def changes(self) -> AsyncGenerator[Change, None]:
        """See `StateStore`."""
        if self._seen is None:
            self._seen = self._contents.last_change
            yield Reread()
        while True:
            for number, replica, change in list(self._contents.changes):
                if number <= self._seen:
                    continue
                missed, self._seen = number > self._seen + 1, number
                if missed:
                    yield Reread()
                if replica != self._replica:
                    yield change
            changed = self._contents.changed
            if self._seen >= self._contents.last_change:
                await changed.wait()

    def _tell(self, change: Change) -> None:
        self._contents.last_change += 1
        self._contents.changes.append((self._contents.last_change, self._replica, change))
        self._contents.changed.set()
        self._contents.changed = asyncio.Event()

    def _appended(self, entry: Entry) -> bool | None:
        snapshot = self._contents.snapshots.get(entry.worker)
        if snapshot is None or snapshot.lineage != entry.lineage or not storable(entry):
            return None
        log = self._contents.logs[entry.worker]
        last = log[-1] if log else snapshot
        if entry.seq <= last.seq:
            return False
        if entry.seq != last.seq + 1 or entry.ts_ms < (log[-1].ts_ms if log else 0) or len(log) >= MAX_LOG_ENTRIES:
            return None
        log.append(entry)
        return True

    def _tip(self, worker: Worker) -> Tip | None:
        snapshot = self._contents.snapshots.get(worker)
        if snapshot is None:
            return None
        log = self._contents.logs[worker]
        top = log[-1] if log else snapshot
        return Tip(snapshot.lineage, snapshot.seq, top.seq, top.ts_ms, snapshot.fingerprint)
