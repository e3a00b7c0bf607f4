"""The store in Redis. Per worker a hash (the snapshot) and a stream (the log), which scripts change in one step.

Redis itself decides what joins: an append whose lineage is not the snapshot's, or that would leave a hole, is refused.
So any number of replicas write the same and one copy stays, without a leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from itertools import chain

import structlog

from index.worker import Worker
from store.format import (
    FORMAT_VERSION,
    SNAPSHOT_FIELDS,
    SnapshotFields,
    Unreadable,
    entry_id,
    pack_entry,
    pack_lineage,
    pack_snapshot,
    storable,
    unpack_entry,
    unpack_snapshot,
)
from store.keys import REGISTRY, SNAPSHOT_PATTERN, worker_keys, worker_of
from store.redis_errors import reason_of, state_error
from store.redis_link import Argument, Command, RedisLink, script_call
from store.redis_registry import RedisRegistry
from store.redis_scripts import APPEND, LOAD, OFFER
from store.state import (
    MAX_LOG_ENTRIES,
    Change,
    Entry,
    Lineage,
    Offer,
    RegisteredInstance,
    Snapshot,
    StateError,
    StateLimits,
    Stored,
)

_log = structlog.stdlib.get_logger("kvroute.store")

_ROUND_TRIP_BYTES = 1_000_000
_ROUND_TRIP_ENTRIES = 1_000
_LOADS_AT_ONCE = 4
_TOUCHES = 500
_MOST_DAMAGED = 10_000
_ANSWERS = {"1": True, "0": False, "-": None}


class RedisState:
    """A `StateStore` over a link, which it owns. `replica` is this process's name among the replicas."""

    def __init__(self, link: RedisLink, limits: StateLimits, replica: str) -> None:
        self._link = link
        self._limits = limits
        self._ttl_ms = int(limits.ttl_s * 1000)
        self._registry = RedisRegistry(link, replica, self._ttl_ms, limits.poll_s)
        self._loads = asyncio.Semaphore(_LOADS_AT_ONCE)
        self._damaged: dict[Worker, SnapshotFields] = {}
        self._in_part = False

    async def open(self) -> None:
        """See `StateStore`."""
        for memory in await self._link.memory_settings("open"):
            policy = memory.get("maxmemory_policy")
            if memory.get("maxmemory") and policy != "noeviction":
                _log.warning("Redis may evict state; set maxmemory-policy noeviction", policy=policy)

    async def close(self) -> None:
        """See `StateStore`."""
        await self._link.close()

    async def load(self, worker: Worker) -> Stored | None:
        """See `StateStore`. Of many at a time, a few are asked for and the others wait."""
        async with self._loads:
            command = script_call(LOAD, worker_keys(worker), *SNAPSHOT_FIELDS)
            snap_kind, fields, log_kind, log = await self._link.one("load", command, self._limits.load_s)
        self._damaged.pop(worker, None)
        if snap_kind == b"none":
            return None
        snapshot = self._readable(worker, snap_kind, fields)
        if isinstance(snapshot, Unreadable):
            _log.warning("stored snapshot ignored", worker=worker, reason=snapshot.reason)
            return None
        if log_kind not in (b"stream", b"none"):
            _log.warning("stored log ignored", worker=worker, reason=f"a {log_kind.decode()}, not a stream")
        return Stored(snapshot, _joining(snapshot, log))

    async def append(self, entries: Sequence[Entry]) -> list[bool | None]:
        """See `StateStore`. One round trip per thousand entries or megabyte."""
        answers: list[bool | None] = [None] * len(entries)
        failures: list[Exception] = []
        reached = False
        for places in _round_trips(entries):
            groups = _by_lineage(entries, places)
            commands = [self._append_command([entries[place] for place in group]) for group in groups]
            for group, answer in zip(groups, await self._link.each("append", commands), strict=True):
                if isinstance(answer, Exception) and reason_of(answer) != "type":
                    failures.append(answer)
                    continue
                reached = True
                letters = "" if isinstance(answer, Exception) else answer.decode()
                for place, letter in zip(group, letters, strict=False):
                    answers[place] = _ANSWERS[letter]
        self._judge(failures, reached)
        return answers

    async def offer(self, snapshot: Snapshot) -> Offer:
        """See `StateStore`."""
        if not storable(snapshot):
            raise StateError("offer", "size", "a number is too large to be stored")
        damaged = self._damaged.get(snapshot.worker)
        known_bad = (damaged.lineage or b"", damaged.seq or b"") if damaged else (b"", b"")
        packed = [field or b"" for field in pack_snapshot(snapshot)]
        command = script_call(OFFER, worker_keys(snapshot.worker), *packed, self._ttl_ms, *known_bad)
        answer = Offer((await self._link.one("offer", command)).decode())
        if answer is Offer.ACCEPTED:
            self._damaged.pop(snapshot.worker, None)
        return answer

    async def log_length(self, worker: Worker) -> int:
        """See `StateStore`."""
        length: int = await self._link.one("log_length", ("XLEN", worker_keys(worker).log))
        return length

    async def forget(self, worker: Worker) -> None:
        """See `StateStore`."""
        self._damaged.pop(worker, None)
        await self._link.all("forget", [("UNLINK", key) for key in worker_keys(worker)])

    async def touch(self, workers: Iterable[Worker]) -> None:
        """See `StateStore`."""
        keys = [*REGISTRY, *chain.from_iterable(worker_keys(worker) for worker in workers)]
        for start in range(0, len(keys), _TOUCHES):
            commands: list[Command] = [("PEXPIRE", key, self._ttl_ms) for key in keys[start : start + _TOUCHES]]
            await self._link.all("touch", commands)

    async def workers(self) -> list[Worker]:
        """See `StateStore`."""
        found = await self._link.scan("workers", SNAPSHOT_PATTERN, self._limits.load_s)
        return sorted(worker for key in found if (worker := worker_of(key)) is not None)

    async def instances(self) -> dict[str, RegisteredInstance]:
        """See `StateStore`."""
        return await self._registry.instances()

    async def put_instance(self, instance: RegisteredInstance) -> None:
        """See `StateStore`."""
        await self._registry.put(instance)

    async def delete_instance(self, id: str) -> None:
        """See `StateStore`."""
        await self._registry.delete(id)

    async def set_draining(self, id: str, draining: bool) -> None:
        """See `StateStore`."""
        await self._registry.set_draining(id, draining)

    def changes(self) -> AsyncGenerator[Change, None]:
        """See `StateStore`. Asks every `poll_s`, which Redis answers without waiting."""
        return self._registry.changes()

    def _readable(self, worker: Worker, kind: bytes, values: list[bytes | None]) -> Snapshot | Unreadable:
        if kind != b"hash":
            return Unreadable(f"a {kind.decode()}, not a hash")
        fields = SnapshotFields(*values)
        snapshot = unpack_snapshot(worker, fields)
        ours = fields.version == str(FORMAT_VERSION).encode()
        if isinstance(snapshot, Unreadable) and ours and len(self._damaged) < _MOST_DAMAGED:
            self._damaged[worker] = fields  # the server cannot see it: an offer says so
        return snapshot

    def _judge(self, failures: list[Exception], reached: bool) -> None:
        """Raise when nothing got through. A part that did not is logged once until all is well again."""
        if failures and not reached:
            raise state_error("append", failures[0])
        if failures and not self._in_part:
            error = state_error("append", failures[0])
            _log.warning("part of the state is not written", reason=error.reason, detail=error.detail)
        self._in_part = bool(failures)

    def _append_command(self, entries: Sequence[Entry]) -> Command:
        first = entries[0]
        arguments: list[Argument] = [FORMAT_VERSION, pack_lineage(first.lineage), self._ttl_ms, MAX_LOG_ENTRIES]
        for entry in entries:
            arguments += (entry.seq, entry_id(entry), pack_entry(entry))
        return script_call(APPEND, worker_keys(first.worker), *arguments)


def _joining(snapshot: Snapshot, log: list[tuple[bytes, list[bytes]]]) -> list[Entry]:
    entries: list[Entry] = []
    for identifier, fields in log:
        entry = unpack_entry(snapshot.worker, identifier, fields[1] if len(fields) == 2 else b"")
        if isinstance(entry, Unreadable):
            _log.warning("rest of the log ignored", worker=snapshot.worker, id=identifier, reason=entry.reason)
            break
        if entry.seq <= snapshot.seq:
            continue
        if entry.lineage != snapshot.lineage or entry.seq != snapshot.seq + len(entries) + 1:
            _log.warning("rest of the log ignored", worker=snapshot.worker, id=identifier, reason="it does not join")
            break
        entries.append(entry)
    return entries


def _round_trips(entries: Sequence[Entry]) -> Iterator[list[int]]:
    """Places of storable entries, in runs that are bounded in number and bytes."""
    run: list[int] = []
    size = 0
    for place, entry in enumerate(entries):
        if not storable(entry):
            continue
        run.append(place)
        size += len(entry.body)
        if size >= _ROUND_TRIP_BYTES or len(run) >= _ROUND_TRIP_ENTRIES:
            yield run
            run, size = [], 0
    if run:
        yield run


def _by_lineage(entries: Sequence[Entry], places: list[int]) -> list[list[int]]:
    groups: dict[tuple[Worker, Lineage], list[int]] = {}
    for place in places:
        groups.setdefault((entries[place].worker, entries[place].lineage), []).append(place)
    return list(groups.values())
