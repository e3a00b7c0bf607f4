"""Write-behind: what was applied goes to the state store later, in order, and never holds up anything else.

Every replica writes everything it applies; the store keeps one copy (docs/adr/0007). A worker whose stored state does
not (or may not) join what it holds is *dirty*: its entries are not written, a fresh snapshot is offered instead. So
nothing is recorded that was not applied, and a number never stands before its data.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

import structlog

from app.followed import Followed, Saved
from app.logs import Repeats
from app.metrics import Metrics
from app.saved_state import pack_batch, pack_worker
from app.state_limits import WriterLimits
from app.state_queue import StateQueue
from app.store_failures import StoreFailures
from index.block_hash import HashIdentity
from index.dump import Recorded
from index.index import Index
from index.worker import Trust, Worker
from store.state import Entry, Lineage, Offer, Snapshot, StateError, StateStore, Stored

_log = structlog.stdlib.get_logger("kvroute.state")

FLUSH_S = 0.05
IDLE_S = 1.0
ROUND_ENTRIES = 512
RETRY_S, RETRY_MAX_S = 0.1, 2.0
ADOPT_AGAIN_S = 10.0
UNREADABLE_S = 300.0
"""Between two looks at a state that a later release wrote."""
PROBE_S = 30.0
"""How often what is stored of idle workers is checked: keys may have been evicted."""
FAILURES_IN_A_ROW = 2
"""So many workers whose snapshot fails mean that the store is ill; one may just be too large."""


class StateWriter:
    """Owns the queue. `run` is a task of the service; what the ingest says is synchronous and cheap."""

    def __init__(
        self,
        store: StateStore,
        index: Index,
        metrics: Metrics,
        limits: WriterLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self.failures = StoreFailures(clock)
        self.adopt: Callable[[Worker], None] = lambda worker: None
        """Told of a worker of which a better state is stored."""
        self._index = index
        self._metrics = metrics
        self._limits = limits or WriterLimits()
        self._queue = StateQueue(self._limits)
        self._followed: dict[Worker, Followed] = {}
        self._discarded: set[Worker] = set()
        self._wake = asyncio.Event()
        self._repeats = Repeats(10.0)
        self._clock = clock
        self._probe_at = clock() + PROBE_S
        self._touch_at = clock() + self._limits.ttl_s / 4

    # What the ingest says

    def began(self, worker: Worker) -> None:
        """The worker starts over, or is about to be changed by something else than batches: a new lineage follows."""
        self._of(worker).begin()

    def resumed(self, worker: Worker, followed: Followed) -> None:
        """The worker goes on from stored state."""
        followed.adopt_from = self._of(worker).adopt_from
        self._followed[worker] = followed

    def not_resumed(self, worker: Worker, stored: Followed) -> None:
        """What was stored of the worker is not of the engine process that is there."""
        if stored.lineage is not None:
            self._of(worker).dead = stored.lineage, stored.seq

    def identified(self, worker: Worker, identity: HashIdentity, shared: bool) -> None:
        """A root block was verified: part of what is saved."""
        followed = self._of(worker)
        if (followed.identity, followed.shared) != (identity, shared):
            followed.identity, followed.shared, followed.clean = identity, shared, False

    def knows_process(self, worker: Worker, fingerprint: str | None) -> None:
        """What identifies the engine's process, as far as known."""
        self._of(worker).fingerprint = fingerprint

    def applied(self, worker: Worker, saved: Saved, operations: list[Recorded] | None) -> None:
        """A batch was applied. `operations` None: its effect can only be told by a snapshot."""
        followed = self._of(worker)
        lineage = followed.take(saved)
        followed.last = None
        if operations is not None:
            body = pack_batch(saved.trust, saved.digest, operations)
            followed.last = Entry(worker, lineage, saved.seq, followed.ids_ms, body)
        if followed.last is None or followed.fingerprint not in (None, followed.stored_fingerprint):
            followed.clean = False
        if followed.clean and followed.last is not None:
            followed.since_snapshot += 1
            if not self._queue.put(followed.last):
                self._overflow()
            self._metrics.state_lag.set(len(self._queue))
        self._wake.set()

    def discard(self, worker: Worker) -> None:
        """What is stored of the worker must go: it is not followed any more, or holds something else now."""
        self._followed.pop(worker, None)
        self._queue.drop(worker)
        self._discarded.add(worker)
        self._wake.set()

    def forget(self, worker: Worker) -> None:
        """The worker is not followed any more; what is stored stays."""
        self._followed.pop(worker, None)
        self._queue.drop(worker)

    def check_soon(self) -> None:
        """What is stored may be lost."""
        self._probe_at = 0.0
        self._wake.set()

    # The task

    async def run(self) -> None:
        """Write until cancelled; after an error wait, longer each time, and go on."""
        pause_s = RETRY_S
        while True:
            await self._pause()
            try:
                await self.write()
                pause_s = RETRY_S
            except StateError as error:
                self._failed(error)
                await asyncio.sleep(pause_s * (1 + random.random()))  # noqa: S311
                pause_s = min(pause_s * 2, RETRY_MAX_S)

    async def drain(self, timeout_s: float) -> None:
        """Write what waits, for so long at most: the process ends.

        Also what was to be offered later only. An offer that the end itself cut off counts as one that failed.
        """
        for followed in self._followed.values():
            followed.offer_from = 0.0
        try:
            async with asyncio.timeout(timeout_s):
                await self.write()
        except (StateError, TimeoutError):
            _log.warning("state not written at the end", batches=len(self._queue))

    async def write(self) -> None:
        """Write all that waits. Raises StateError when the store is ill; what was not written stays."""
        for worker in list(self._discarded):
            await self.store.forget(worker)
            self._discarded.discard(worker)
        while self._queue:
            await self._append(self._queue.first(ROUND_ENTRIES))
        await self._probe()
        await self._offer_all()
        for worker, followed in list(self._followed.items()):
            if followed.clean and followed.since_snapshot >= self._due(followed):
                await self._shorten(worker, followed)
        if self._clock() >= self._touch_at:
            await self.store.touch(list(self._followed))
            self._touch_at = self._clock() + self._limits.ttl_s / 4

    async def _pause(self) -> None:
        if not self._queue and not self._discarded and not self._dirty():
            self._wake.clear()
            try:
                async with asyncio.timeout(min(IDLE_S, self._limits.ttl_s / 8)):
                    await self._wake.wait()
            except TimeoutError:
                pass
        await asyncio.sleep(FLUSH_S)

    # Entries

    async def _append(self, entries: list[Entry]) -> None:
        for entry, written in zip(entries, await self.store.append(entries), strict=True):
            self._queue.done(entry)
            if written:
                self._metrics.state_writes.inc()
            followed = self._followed.get(entry.worker)
            if written is None and followed is not None and followed.lineage == entry.lineage:
                followed.clean = False
        self._metrics.state_lag.set(len(self._queue))

    async def _probe(self) -> None:
        """Write last entries once more: those that are not there any more show that a worker's state is lost."""
        if self._clock() < self._probe_at:
            return
        probes = [followed.probe(worker) for worker, followed in self._followed.items()]
        await self._append([probe for probe in probes if probe is not None])
        self._probe_at = self._clock() + PROBE_S

    def _overflow(self) -> None:
        """The store cannot follow: give up the queue, snapshots bring it up to date."""
        for worker in self._queue.clear():
            if worker in self._followed:
                self._followed[worker].clean = False
        self._metrics.state_errors.labels("overflow").inc()
        if (held_back := self._repeats.due("overflow")) is not None:
            _log.warning("state store too slow, snapshots will follow", held_back=held_back)

    # Snapshots

    def _dirty(self) -> list[Worker]:
        """Whose snapshot is due, those first that were refused least often."""
        now = self._clock()
        due = [worker for worker, followed in self._followed.items() if followed.offers(now) and worker in self._index]
        return sorted(due, key=lambda worker: self._followed[worker].refusals)

    async def _offer_all(self) -> None:
        failures = 0
        for worker in self._dirty():
            try:
                await self._offer(worker)
                failures = 0
            except StateError as error:
                failures += 1
                if failures == FAILURES_IN_A_ROW:
                    raise
                self._failed(error)

    async def _offer(self, worker: Worker) -> None:
        """Offer a snapshot of what the worker holds now; entries for later batches follow it."""
        followed = self._followed.get(worker)
        if followed is None or followed.lineage is None or worker not in self._index:
            return
        self._queue.drop(worker)
        snapshot = self._snapshot(worker, followed, followed.lineage)
        followed.clean, followed.since_snapshot, followed.due = True, 0, 0
        followed.stored_fingerprint = snapshot.fingerprint
        try:
            answer = await self.store.offer(snapshot)
        except BaseException:
            followed.not_taken(self._clock())
            raise
        self._metrics.state_writes.inc()
        if worker not in self._followed:
            self._discarded.add(worker)  # an instance that was deleted meanwhile
        elif answer is not Offer.BETTER:
            followed.taken()
        elif followed.lineage == snapshot.lineage:
            followed.not_taken(self._clock())
            await self._take_over(worker, followed, snapshot)

    def _snapshot(self, worker: Worker, followed: Followed, lineage: Lineage) -> Snapshot:
        dump = self._index.dump(worker)
        trust = followed.trust if dump is None or dump.whole else Trust.PARTIAL
        body = pack_worker(trust, followed.digest, followed.identity, shared=followed.shared, dump=dump)
        return Snapshot(worker, lineage, followed.seq, followed.ids_ms, followed.fingerprint, body)

    async def _take_over(self, worker: Worker, followed: Followed, mine: Snapshot) -> None:
        """Something else is stored. Adopt it if it knows more of the engine's history; else wait for a turn."""
        if self._clock() < followed.adopt_from and followed.dead is None:
            return
        stored = await self.store.load(worker)
        if stored is None:
            followed.adopt_from = self._clock() + UNREADABLE_S
            return
        if followed.lineage != mine.lineage or self._followed.get(worker) is not followed:
            return
        if followed.dead == (stored.snapshot.lineage, stored.last.seq):
            followed.dead, followed.offer_from = None, 0.0
            await self.store.forget(worker)
            return
        if _cannot_join(stored, mine):
            await self._outlive(worker, followed, stored)
            return
        if self._clock() < followed.adopt_from or not _knows_more(stored, mine):
            return
        followed.adopt_from = self._clock() + ADOPT_AGAIN_S
        _log.info("better state is stored, taking it over", instance=worker.instance, dp_rank=worker.dp_rank)
        self.adopt(worker)

    async def _outlive(self, worker: Worker, followed: Followed, stored: Stored) -> None:
        """What is stored ends before a hole. It goes when it stands still: else a replica that has it all writes on."""
        place, now = (stored.snapshot.lineage, stored.last.seq), self._clock()
        if followed.stuck != place:
            followed.stuck, followed.stuck_since = place, now
        elif now - followed.stuck_since >= ADOPT_AGAIN_S:
            followed.stuck, followed.offer_from = None, 0.0
            await self.store.forget(worker)

    async def _shorten(self, worker: Worker, followed: Followed) -> None:
        """A long log is replaced by a snapshot, by whoever finds it first."""
        followed.due = 0
        if await self.store.log_length(worker) >= self._limits.snapshot_batches:
            await self._offer(worker)
        else:
            followed.since_snapshot = 0

    def _due(self, followed: Followed) -> int:
        if followed.due == 0:
            followed.due = int(self._limits.snapshot_batches * (1 + random.random()))  # noqa: S311
        return followed.due

    def _of(self, worker: Worker) -> Followed:
        return self._followed.setdefault(worker, Followed())

    def _failed(self, error: StateError) -> None:
        self._probe_at = 0.0  # nobody knows what is left
        self.failures.note(error)
        self._metrics.state_errors.labels(error.op).inc()
        if (held_back := self._repeats.due(error.op)) is not None:
            _log.warning("state store", op=error.op, reason=error.reason, held_back=held_back)


def _cannot_join(stored: Stored, mine: Snapshot) -> bool:
    """Whether batches lie between the end of what is stored and the beginning of what is held, of one process.

    They were asked for and did not come; who took the older state back would claim it, and lose it at the same hole.
    """
    other, own = stored.snapshot.fingerprint, mine.fingerprint
    if other is not None and own is not None and other != own:
        return False
    return stored.last.seq + 1 < mine.lineage.origin_seq


def _knows_more(stored: Stored, mine: Snapshot) -> bool:
    other, own = stored.snapshot.fingerprint, mine.fingerprint
    if other is not None and own is not None and other != own:
        return True  # a later process; or an earlier one, which its adoption will show
    return stored.snapshot.lineage != mine.lineage and stored.snapshot.lineage.origin_seq <= mine.lineage.origin_seq
