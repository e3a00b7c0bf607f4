"""From signals to index: one worker's batches are decoded, checked for identity, applied and counted, in order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import structlog
from xxhash import xxh3_64_digest

from app.batch_runs import count_applied, count_types, leading_batches
from app.fleet import Instance, TrackedWorker
from app.followed import Followed, Saved
from app.hash_check import HashCheck
from app.metrics import Metrics
from app.state_writer import StateWriter
from app.warm_start import Restored
from engine.stream import BadFrame, Batch, Clear, Gap, Link, Resumed, Signal
from engine.wire import WireError, decode
from index.delta import NOT_APPLIED, AppliedPayload, AppliedRun, Delta
from index.dump import Recorded
from index.event import EventBatch
from index.index import Index
from index.worker import Trust

_log = structlog.stdlib.get_logger("kvroute.ingest")

NEW_PROCESS = frozenset({"start", "restart", "reconnect"})
"""Reasons of a `Clear` after which everything learnt from the process is open again."""

OWN_REASONS = NEW_PROCESS | {"gap"}
"""Reasons that the stream gives. Others were asked for: something is known better now."""


FUTURE_S = 86_400.0
"""An engine's time further ahead than this says nothing, and must not outrank all later ones in the state store."""


class WorkerIngest:
    """Applies one worker's stream to the index. Synchronous, so a batch is atomic for every route."""

    def __init__(
        self,
        instance: Instance,
        tracked: TrackedWorker,
        index: Index,
        metrics: Metrics,
        *,
        check: HashCheck | None,
        look_again: Callable[[], None],
        fetch_again: Callable[[str], object] = lambda reason: None,
        writer: StateWriter | None = None,
        restored: Restored | None = None,
    ) -> None:
        """`check` is None for SGLang, whose hashes have no seed. `look_again` asks for a discovery soon.

        `fetch_again` asks for all that the engine still has, to be filed anew, where there is somebody to ask.
        `writer` takes what must outlive the process; `restored` is what the worker holds from there.
        """
        self._instance = instance
        self._tracked = tracked
        self._index = index
        self._metrics = metrics
        self._check = check
        self._look_again = look_again
        self._fetch_again = fetch_again
        self._writer = writer
        self._restored = restored

    def take(self, signals: deque[Signal]) -> None:
        """Apply the first signal and take it away; with a batch, those behind it that can be applied along with it.

        A mistake of our own costs this worker what it holds, not the process.
        """
        try:
            done = self._taken(signals)
        except Exception:
            done = 1  # the others are applied again, to what is empty now
            self._failed(signals[0])
            _log.exception("a signal could not be applied", **self._tracked.names)
            self._wire_error("internal")
            self._index.restart(self._tracked.worker)
            self._tracked.trust = Trust.PARTIAL if self._usable() else Trust.NONE
            if self._writer is not None:
                self._writer.began(self._tracked.worker)
        for _ in range(done):
            signals.popleft()

    def refile(self) -> None:
        """Drop what was filed while nobody knew how to read it, and ask for it again. To be called when more is known.

        What waits for its engine to be recognised counts for nothing yet; it is looked at then.
        """
        if self._restored is not None or not self._index.misfiled(self._tracked.worker):
            return
        self._index.clear(self._tracked.worker)
        self._begin_lineage(anew=True)
        self._lost_part()
        _log.warning("blocks were filed before their format was known, fetching them again", **self._tracked.names)
        self._fetch_again("format")

    def _failed(self, signal: Signal) -> None:
        """A batch has come, even if it could not be applied."""
        if isinstance(signal, Batch) and (self._tracked.seq is None or self._tracked.seq < signal.seq):
            self._came([signal])

    def _taken(self, signals: deque[Signal]) -> int:
        """How many signals were applied."""
        match signals[0]:
            case Batch():
                return self._batches(leading_batches(signals))
            case Clear(reason, trust):
                self._clear(reason, trust)
            case Resumed():
                self._resumed()
            case Link(up):
                self._link(up)
            case Gap(missing):
                self._tracked.gaps += 1
                self._metrics.gap(self._tracked.worker, missing)
                _log.warning("event gap", **self._tracked.names, missing=missing)
            case BadFrame(reason):
                self._tracked.batches += 1
                self._wire_error(reason)
        return 1

    def _link(self, up: bool) -> None:
        tracked = self._tracked
        tracked.link_up = up
        tracked.link_lost_at = None if up else time.monotonic()
        if up and tracked.trust is Trust.NONE and not tracked.refused:
            tracked.trust = Trust.PARTIAL
        _log.info("event stream connected" if up else "event stream lost", **self._tracked.names)

    def _clear(self, reason: str, trust: Trust) -> None:
        tracked = self._tracked
        self._not_resumed()
        if reason in NEW_PROCESS:
            self._forget_process()
        else:
            self._index.clear(tracked.worker)
        if self._check is not None:
            self._check.cleared()
        tracked.doubtful = False
        self._begin_lineage(anew=reason not in OWN_REASONS)
        tracked.trust = trust if self._usable() else Trust.NONE
        if reason != "start":
            self._look_again()
            tracked.resets[reason] += 1
            self._metrics.reset(tracked.worker, reason)
            _log.warning("worker cleared", **self._tracked.names, reason=reason, trust=trust.value)

    def _forget_process(self) -> None:
        tracked = self._tracked
        self._index.restart(tracked.worker)
        tracked.seq, tracked.asleep = None, False
        tracked.batches = tracked.usable_batches = 0
        if self._check is not None:
            self._check.new_process()

    def _batches(self, run: list[Batch]) -> int:
        """Apply the first batch at least; how many were."""
        if self._is_judged or not self._usable() or (run[0].replayed and self._tracked.asleep):
            applied = NOT_APPLIED
        else:
            payloads = [batch.payload for batch in run]
            applied = self._index.apply_payloads(self._tracked.worker, payloads, self._writer is not None)
        if applied.payloads:
            self._plain(run[: applied.payloads], applied)
        if applied.begun is not None:
            self._begun(run[applied.payloads], applied.begun)
            return applied.payloads + 1
        if not applied.payloads:
            self._batch(run[0])
        return max(applied.payloads, 1)

    @property
    def _is_judged(self) -> bool:
        """Whether every batch's first blocks are to be looked at."""
        return self._check is not None and not self._check.settled

    def _plain(self, run: list[Batch], applied: AppliedRun) -> None:
        """Payloads that the native core applied by itself."""
        self._came(run)
        self._seen(applied.ts, run[0].replayed, len(run))
        self._metrics.events(self._tracked.worker, count_applied(applied))
        if applied.matched or applied.unchecked:
            self._verified(applied.matched, 0, applied.unchecked)
        for batch, (ts, operations) in zip(run, applied.recorded, strict=False):
            self._save(batch, ts, operations)
        self.refile()

    def _begun(self, batch: Batch, applied: AppliedPayload) -> None:
        """One that the native core applied in part, or not without a loss."""
        self._came([batch])
        delta, counts = applied.delta, count_applied(applied)
        if applied.done < applied.events:
            decoded, record = decode(batch.payload, self._instance.settings.engine), self._writer is not None
            delta = self._index.apply(self._tracked.worker, decoded, record, applied)
            counts = count_types(decoded.events)
        self._seen(applied.ts, batch.replayed)
        self._save(batch, applied.ts, self._told(delta, counts))
        self.refile()

    def _batch(self, taken: Batch) -> None:
        """One that is decoded here."""
        tracked = self._tracked
        self._came([taken])
        batch = self._decoded(taken)
        if batch is None:
            return
        self._seen(batch.ts, taken.replayed)
        if self._check is not None:
            batch = self._check.judged(batch)
        if not self._usable():
            self._begin_lineage()
        elif not (taken.replayed and tracked.asleep):
            delta = self._index.apply(tracked.worker, batch, record=self._writer is not None)
            self._save(taken, batch.ts, self._told(delta, count_types(batch.events)))
            self.refile()

    def _came(self, run: list[Batch]) -> None:
        """Batches that were all live, or all replayed."""
        tracked, replayed = self._tracked, run[0].replayed
        tracked.seq = run[-1].seq
        tracked.batches += len(run)
        self._metrics.batches(tracked.worker, len(run), replayed)
        if replayed:
            tracked.replayed_batches += len(run)

    def _decoded(self, batch: Batch) -> EventBatch | None:
        try:
            return decode(batch.payload, self._instance.settings.engine)
        except WireError as error:
            self._wire_error(error.reason)
            self._lost_part()
            self._save(batch, None, [])
            return None

    def _seen(self, ts: float, replayed: bool, count: int = 1) -> None:
        """Batches that can be used, the last one made at `ts`."""
        if not replayed:  # a batch out of the replay is old, and says nothing of how far behind the stream is
            self._tracked.lag_s = max(0.0, time.time() - ts)
        self._tracked.usable_batches += count

    def _told(self, delta: Delta, counts: dict[str, int]) -> list[Recorded] | None:
        """What a batch did, to the metrics and the worker's trust; returns what is to be saved of it."""
        tracked = self._tracked
        self._metrics.events(tracked.worker, counts)
        if delta.cleared and not delta.lossy:
            tracked.trust = Trust.EXACT
        if delta.lossy:
            self._lost_part()
        for reason, count in delta.skipped.items():
            tracked.wire_errors[reason] += count
            self._metrics.skipped(tracked.worker, reason, count)
        if delta.matched or delta.mismatched or delta.unchecked:
            self._verified(delta.matched, delta.mismatched, delta.unchecked)
        return delta.operations

    def _verified(self, matched: int, mismatched: int, unchecked: int) -> None:
        """What the check of stored blocks found. One that is wrong has the consequence of a wrong root block."""
        self._metrics.verified(self._tracked.worker, matched, mismatched, unchecked)
        if mismatched and self._check is not None:
            self._check.contradicted()
            if not self._usable():
                self._begin_lineage(anew=True)

    def _save(self, batch: Batch, ts: float | None, operations: list[Recorded] | None) -> None:
        """Hand what was applied to the state writer, which waits for nothing."""
        if self._writer is None or not self._usable():
            return
        tracked = self._tracked
        if self._check is not None and tracked.hash.identity is not None:
            self._writer.identified(tracked.worker, tracked.hash.identity, tracked.hash.status == "verified")
        plausible = ts is not None and 0.0 <= ts <= time.time() + FUTURE_S
        ts_ms = int(ts * 1000) if ts is not None and plausible else 0
        saved = Saved(batch.seq, ts_ms, tracked.trust, xxh3_64_digest(batch.payload))
        self._writer.applied(tracked.worker, saved, operations)

    def _resumed(self) -> None:
        """The engine is the one that the stored state was of: it counts from now on."""
        tracked, restored = self._tracked, self._restored
        assert restored is not None
        self._restored = None
        position, followed = restored
        tracked.doubtful, tracked.trust, tracked.seq = False, position.trust, position.next_seq - 1
        if self._writer is not None:
            self._writer.resumed(tracked.worker, followed)
        fits = followed.identity is None or self._check is None
        if not self._usable() or tracked.asleep or not (fits or self._is_still(followed)):
            self._index.restart(tracked.worker)
            tracked.trust = Trust.PARTIAL if self._usable() else Trust.NONE
            if self._writer is not None:
                self._writer.discard(tracked.worker)
        _log.info("stored state joined the engine's stream", **self._tracked.names, trust=tracked.trust.value)
        self.refile()

    def _is_still(self, followed: Followed) -> bool:
        assert self._check is not None
        assert followed.identity is not None
        return self._check.restored(followed.identity, followed.shared)

    def _not_resumed(self) -> None:
        """If stored state waited to be resumed: it is of another process."""
        restored, self._restored = self._restored, None
        if restored is not None and self._writer is not None:
            self._writer.not_resumed(self._tracked.worker, restored.followed)

    def _begin_lineage(self, anew: bool = False) -> None:
        """`anew`: the same batches are applied in another way now, what is stored must not stay."""
        if self._writer is not None:
            if anew:
                self._writer.discard(self._tracked.worker)
            self._writer.began(self._tracked.worker)

    def _usable(self) -> bool:
        return not self._tracked.refused and self._instance.unusable is None

    def _lost_part(self) -> None:
        """Something the engine said is lost: what is held may be wrong until its next clear."""
        if self._tracked.trust is Trust.EXACT:
            self._tracked.trust = Trust.PARTIAL

    def _wire_error(self, reason: str) -> None:
        self._tracked.wire_errors[reason] += 1
        self._metrics.wire_error(self._tracked.worker, reason)
        if self._tracked.wire_errors[reason] == 1:
            _log.warning("unusable event message", **self._tracked.names, reason=reason)
