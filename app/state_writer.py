"""Write-behind: what was applied goes to the state store later, in order, and never holds up anything else.

Every replica writes everything it applies; the store keeps one copy (docs/adr/0007). A worker whose stored state does
not (or may not) join what it holds is *dirty*: its entries are not written, a fresh snapshot is offered instead. So
nothing is recorded that was not applied, and a number never stands before its data.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from app.logs import Repeats
from app.metrics import Metrics
from app.saved_state import pack_batch, pack_worker
from app.state_limits import WriterLimits
from index.block_hash import HashIdentity
from index.dump import Operation
from index.index import Index
from index.worker import Trust, Worker
from store.state import Entry, Lineage, Offer, Snapshot, StateError, StateStore

_log = structlog.stdlib.get_logger("kvroute.state")

FLUSH_S = 0.05
ROUND_ENTRIES = 512
RETRY_S, RETRY_MAX_S = 0.1, 5.0
ADOPT_AGAIN_S = 10.0


class Saved(NamedTuple):
    """A batch that was applied: its number, the engine's time in ms (0: unknown), the trust after it, its digest."""

    seq: int
    ts_ms: int
    trust: Trust
    digest: bytes | None


@dataclass(slots=True)
class Followed:
    """What the writer knows of one worker. `ids_ms` never goes back, so that the store takes every entry."""

    fingerprint: str | None = None
    identity: HashIdentity | None = None
    shared: bool = False
    lineage: Lineage | None = None
    seq: int = -1
    ids_ms: int = 0
    trust: Trust = Trust.NONE
    digest: bytes | None = None
    clean: bool = False
    since_snapshot: int = 0
    due: int = 0
    adopted_at: float = -1e9


@dataclass(slots=True)
class StateWriter:
    """Owns the queue. `run` is a task of the service; everything else is synchronous and cheap."""

    store: StateStore
    index: Index
    metrics: Metrics
    limits: WriterLimits = field(default_factory=WriterLimits)
    adopt: Callable[[Worker], None] = lambda worker: None
    _followed: dict[Worker, Followed] = field(default_factory=dict)
    _queue: deque[Entry] = field(default_factory=deque)
    _queued_bytes: int = 0
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _repeats: Repeats = field(default_factory=lambda: Repeats(10.0))

    # What the ingest says

    def began(self, worker: Worker) -> None:
        """The worker starts over: what follows is another lineage."""
        followed = self._followed.setdefault(worker, Followed())
        followed.lineage, followed.clean, followed.ids_ms = None, False, 0
        followed.identity, followed.shared = None, False

    def resumed(self, worker: Worker, followed: Followed) -> None:
        """The worker goes on from stored state."""
        self._followed[worker] = followed

    def identified(self, worker: Worker, identity: HashIdentity, shared: bool) -> None:
        """A root block was verified: part of what is saved."""
        followed = self._followed.setdefault(worker, Followed())
        if (followed.identity, followed.shared) != (identity, shared):
            followed.identity, followed.shared, followed.clean = identity, shared, False

    def knows_process(self, worker: Worker, fingerprint: str | None) -> None:
        """What identifies the engine's process, as far as known."""
        self._followed.setdefault(worker, Followed()).fingerprint = fingerprint

    def applied(self, worker: Worker, saved: Saved, operations: list[Operation] | None) -> None:
        """A batch was applied. `operations` None: its effect can only be told by a snapshot."""
        followed = self._followed.setdefault(worker, Followed())
        followed.ids_ms = max(followed.ids_ms, saved.ts_ms)
        followed.seq, followed.trust, followed.digest = saved.seq, saved.trust, saved.digest
        if followed.lineage is None:
            followed.lineage = Lineage(saved.seq, followed.ids_ms)
            followed.clean = False
        if operations is None:
            followed.clean = False
        if not followed.clean:
            self._wake.set()
            return
        body = pack_batch(saved.trust, saved.digest, operations or [])
        self._queue.append(Entry(worker, followed.lineage, saved.seq, followed.ids_ms, body))
        self._queued_bytes += len(body)
        followed.since_snapshot += 1
        self.metrics.state_lag.set(len(self._queue))
        if len(self._queue) > self.limits.queue_batches or self._queued_bytes > self.limits.queue_bytes:
            self._overflow()
        self._wake.set()

    def forget(self, worker: Worker) -> None:
        """The worker is not followed any more."""
        self._followed.pop(worker, None)

    # The task

    async def run(self) -> None:
        """Write until cancelled; after an error wait, longer each time, and go on."""
        pause_s, touched_at = RETRY_S, time.monotonic()
        while True:
            await self._pause(FLUSH_S)
            try:
                await self._write()
                if time.monotonic() - touched_at > self.limits.ttl_s / 4:
                    await self.store.touch(list(self._followed))
                    touched_at = time.monotonic()
                pause_s = RETRY_S
            except StateError as error:
                self._failed(error)
                await asyncio.sleep(pause_s * (1 + random.random()))  # noqa: S311
                pause_s = min(pause_s * 2, RETRY_MAX_S)

    async def drain(self, timeout_s: float) -> None:
        """Write what waits, for so long at most: the process ends."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._write()
        except (StateError, TimeoutError):
            _log.warning("state not written at the end", batches=len(self._queue))

    async def _pause(self, least_s: float) -> None:
        if not self._queue and not self._dirty():
            self._wake.clear()
            try:
                async with asyncio.timeout(1.0):
                    await self._wake.wait()
            except TimeoutError:
                pass
        await asyncio.sleep(least_s)

    async def _write(self) -> None:
        for worker in self._dirty():
            await self._offer(worker)
        while self._queue:
            entries = [self._queue[position] for position in range(min(ROUND_ENTRIES, len(self._queue)))]
            results = await self.store.append(entries)
            for entry, written in zip(entries, results, strict=True):
                self._done(entry, written)
        for worker, followed in list(self._followed.items()):
            if followed.clean and followed.since_snapshot >= self._due(followed):
                await self._shorten(worker, followed)

    def _done(self, entry: Entry, written: bool | None) -> None:
        if self._queue and self._queue[0] is entry:
            self._queue.popleft()
            self._queued_bytes -= len(entry.body)
        self.metrics.state_lag.set(len(self._queue))
        if written:
            self.metrics.state_writes.inc()
        followed = self._followed.get(entry.worker)
        if written is None and followed is not None and followed.lineage == entry.lineage:
            followed.clean = False

    def _dirty(self) -> list[Worker]:
        return [
            worker
            for worker, followed in self._followed.items()
            if not followed.clean and followed.lineage is not None and worker in self.index
        ]

    async def _offer(self, worker: Worker) -> None:
        """Offer a snapshot of what the worker holds now; entries for later batches follow it."""
        followed = self._followed.get(worker)
        if followed is None or followed.lineage is None or worker not in self.index:
            return
        self._drop_entries(worker)
        dump = self.index.dump(worker)
        whole = dump is None or dump.whole
        trust = followed.trust if whole else Trust.PARTIAL
        body = pack_worker(trust, followed.digest, followed.identity, shared=followed.shared, dump=dump)
        snapshot = Snapshot(worker, followed.lineage, followed.seq, followed.ids_ms, followed.fingerprint, body)
        followed.clean, followed.since_snapshot = True, 0
        followed.due = 0
        try:
            answer = await self.store.offer(snapshot)
        except BaseException:
            followed.clean = False
            raise
        self.metrics.state_writes.inc()
        if answer is Offer.BETTER and followed.lineage == snapshot.lineage:
            self._adopt(worker, followed)

    def _adopt(self, worker: Worker, followed: Followed) -> None:
        """Another replica knows more of this engine's history: take its state over."""
        followed.clean = False
        now = time.monotonic()
        if now - followed.adopted_at > ADOPT_AGAIN_S:
            followed.adopted_at = now
            _log.info("better state is stored, taking it over", instance=worker.instance, dp_rank=worker.dp_rank)
            self.adopt(worker)

    async def _shorten(self, worker: Worker, followed: Followed) -> None:
        """A long log is replaced by a snapshot, by whoever finds it first."""
        followed.due = 0
        if await self.store.log_length(worker) >= self.limits.snapshot_batches:
            await self._offer(worker)
        else:
            followed.since_snapshot = 0

    def _due(self, followed: Followed) -> int:
        if followed.due == 0:
            followed.due = int(self.limits.snapshot_batches * (1 + random.random()))  # noqa: S311
        return followed.due

    def _overflow(self) -> None:
        """The store cannot follow: give up the queue, snapshots bring it up to date."""
        for entry in self._queue:
            followed = self._followed.get(entry.worker)
            if followed is not None:
                followed.clean = False
        self._queue.clear()
        self._queued_bytes = 0
        self.metrics.state_lag.set(0)
        self.metrics.state_errors.labels("overflow").inc()
        if (held_back := self._repeats.due("overflow")) is not None:
            _log.warning("state store too slow, snapshots will follow", held_back=held_back)

    def _drop_entries(self, worker: Worker) -> None:
        if any(entry.worker == worker for entry in self._queue):
            kept = [entry for entry in self._queue if entry.worker != worker]
            self._queue.clear()
            self._queue.extend(kept)
            self._queued_bytes = sum(len(entry.body) for entry in kept)

    def _failed(self, error: StateError) -> None:
        self.metrics.state_errors.labels(error.op).inc()
        if (held_back := self._repeats.due(error.op)) is not None:
            _log.warning("state store", op=error.op, reason=error.reason, held_back=held_back)
