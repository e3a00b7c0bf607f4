"""What outlives the process, as plain values, and the store that keeps it.

Per worker there is one snapshot, and a log of what was applied after it, one entry per batch. A *lineage* names a run
of states that every replica reaches alike: it is the first batch applied after the last clear. Equal lineage and equal
`seq` mean equal state. The log only ever holds entries of its snapshot's lineage, without a hole.

Limits: `seq` and `ts_ms` are below 2**53 (Redis scripts count in doubles) and `ts_ms` never falls within a lineage:
whoever makes entries raises it to the one before where an engine's clock went back.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal, NamedTuple, Protocol

from index.worker import Worker

MAX_NUMBER = 2**53 - 1
"""The largest `seq`, `ts_ms`, `origin_seq` and `origin_ts_ms` that can be stored."""

MAX_LOG_ENTRIES = 20_000
"""A longer log takes no entry until a snapshot has shortened it."""

STALE_MS = 10_000
"""What is stored counts as abandoned when its last batch is older than the offered one by more than this."""


class StateError(Exception):
    """The store did not do it: refused, too slow, full, read-only, or gone. Nothing is known about what was written.

    Every call can be repeated as it is. `reason` is a label for metrics: timeout, connection, auth, permission, oom,
    readonly, loading, busy, cluster, size or other. `detail` never holds credentials.
    """

    def __init__(self, op: str, reason: str, detail: str = "") -> None:
        super().__init__(f"{op}: {detail or reason}")
        self.op = op
        self.reason = reason
        self.detail = detail


class StateLimits(NamedTuple):
    """`call_s` bounds every call but `load` and `workers`, which get `load_s` each. Keys expire `ttl_s` after the last
    write or `touch`. `poll_s` is how often `changes` looks. `connections` is per server."""

    call_s: float = 2.0
    load_s: float = 10.0
    ttl_s: float = 86_400.0
    poll_s: float = 0.5
    connections: int = 8


class Lineage(NamedTuple):
    """The first batch applied after the last clear: its number and its engine's time in milliseconds."""

    origin_seq: int
    origin_ts_ms: int


class Entry(NamedTuple):
    """The effect of one batch. `body` is opaque."""

    worker: Worker
    lineage: Lineage
    seq: int
    ts_ms: int
    body: bytes


class Snapshot(NamedTuple):
    """A worker's whole state after batch `seq`. `fingerprint` is the engine process's, if known. `body` is opaque."""

    worker: Worker
    lineage: Lineage
    seq: int
    ts_ms: int
    fingerprint: str | None
    body: bytes


class Stored(NamedTuple):
    """A snapshot and the entries that join it: numbers `snapshot.seq + 1` and on, without a hole."""

    snapshot: Snapshot
    entries: list[Entry]

    @property
    def last(self) -> Snapshot | Entry:
        """The newest of it: the last entry, else the snapshot."""
        return self.entries[-1] if self.entries else self.snapshot


class Offer(StrEnum):
    """What became of an offered snapshot.

    ACCEPTED: it is stored, and what does not join it is gone. KEPT: one of its lineage, at least as new, is stored.
    BETTER: another replica's lineage is stored, alive and knows more: load it and follow the engine from there. (When
    nothing can be loaded then, a later release of kvroute wrote it: leave it alone.)
    """

    ACCEPTED = "accepted"
    KEPT = "kept"
    BETTER = "better"


class RegisteredInstance(NamedTuple):
    """An instance as replicas share it. `settings` is its YAML form; `source` says whether a file or HTTP added it."""

    id: str
    settings: Mapping[str, Any]
    source: Literal["file", "http"]
    draining: bool = False


class Put(NamedTuple):
    """Another replica added an instance, or changed its settings."""

    instance: RegisteredInstance


class Deleted(NamedTuple):
    """Another replica deleted an instance."""

    id: str


class Drained(NamedTuple):
    """Another replica drained an instance, or (`draining` False) undrained it."""

    id: str
    draining: bool


class Reread(NamedTuple):
    """Changes were missed, for example after a long time away: `instances()` tells the whole."""


class Lost(NamedTuple):
    """The registry was lost (flushed, evicted, restarted empty): put the instances that this replica knows again."""


Change = Put | Deleted | Drained | Reread | Lost


class StateStore(Protocol):
    """Every method raises `StateError` alone and ends within its time limit. Calls may overlap."""

    async def open(self) -> None:
        """Find out whether the store answers; warn of settings that lose state. The rest works without it."""

    async def close(self) -> None:
        """Let go of connections. Never raises."""

    async def load(self, worker: Worker) -> Stored | None:
        """What is stored and joins. None: nothing, or nothing that this release can read (logged)."""

    async def append(self, entries: Sequence[Entry]) -> list[bool | None]:
        """Write log entries, those of one worker in the order of `seq`. Per entry:

        True: written, now durable as far as the store is. False: it was there (another replica, or an earlier try).
        None: it does not join what is stored (nothing, another lineage, a hole, a log that is too long, a part of the
        cluster that failed): offer a snapshot. Raises when nothing, or one of several round trips, got no answer.
        """

    async def offer(self, snapshot: Snapshot) -> Offer:
        """Store a snapshot unless a better one is there (`store.offer_rules`); shorten the log to what follows it."""

    async def log_length(self, worker: Worker) -> int:
        """Entries in the log."""

    async def forget(self, worker: Worker) -> None:
        """Delete a worker's state."""

    async def touch(self, workers: Iterable[Worker]) -> None:
        """Put off the expiry of these workers' state and of the registry."""

    async def workers(self) -> list[Worker]:
        """All that have a snapshot, sorted. Goes through all keys: for operators, not for routine."""

    async def instances(self) -> dict[str, RegisteredInstance]:
        """The registry as a whole. `changes` goes on from here."""

    async def put_instance(self, instance: RegisteredInstance) -> None:
        """Add an instance, or change its settings. A stored one keeps its draining flag. Equal settings: no change."""

    async def delete_instance(self, id: str) -> None:
        """Delete an instance and tell the others, also those that know it from their file.

        Leaves no tombstone: a replica that starts with a file that lists the instance puts it again.
        """

    async def set_draining(self, id: str, draining: bool) -> None:
        """Set the draining flag and tell the others. Kept only for instances in the registry."""

    def changes(self) -> AsyncGenerator[Change, None]:
        """What other replicas changed since `instances()` or the last change taken, for ever, also while it was away.

        Own changes are left out. Without `instances()` before it, begins with `Reread`. After a StateError call it
        again: it goes on where it stopped. One iteration at a time. `Lost` may be told twice.
        """
