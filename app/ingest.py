"""From signals to index: one worker's batches are decoded, checked for identity, applied and counted, in order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import structlog

from app.batch_runs import count_applied, count_types, leading_batches
from app.hash_check import HashCheck
from app.instance import Instance, TrackedWorker
from app.metrics import Metrics
from app.state_writer import StateWriter
from app.stream_counts import StreamCounts
from app.warm_start import Restored
from app.worker_record import WorkerRecord
from engine.stream import BadFrame, Batch, Clear, Current, Gap, Link, Resumed, Signal, Stale
from engine.wire import WireError, decode
from index.delta import NOT_APPLIED, AppliedPayload, AppliedRun, Delta
from index.dump import Recorded
from index.event import EventBatch
from index.index import Index
from index.worker import Trust

_log = structlog.stdlib.get_logger("kvroute.ingest")

NEW_PROCESS = frozenset({"start", "restart", "reconnect"})
"""Reasons of a `Clear` after which everything learnt from the process is open again."""

ON_ITS_WAY_S = 3.0
"""How long a request may take from its routing to the engine's cache, which may be cleared meanwhile."""

OWN_REASONS = NEW_PROCESS | {"gap"}
"""Reasons that the stream gives. Others were asked for: something is known better now."""


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
        link_changed: Callable[[bool], None] = lambda up: None,
        writer: StateWriter | None = None,
        restored: Restored | None = None,
    ) -> None:
        """`check` is None for SGLang, whose hashes have no seed. `look_again` asks for a discovery soon.

        `fetch_again` asks for all that the engine still has, to be filed anew, where there is somebody to ask.
        `link_changed` is told when the stream is there and when it is lost.
        `writer` takes what must outlive the process; `restored` is what the worker holds from there.
        """
        self._instance = instance
        self._tracked = tracked
        self._index = index
        self._metrics = metrics
        self._counts = StreamCounts(tracked, metrics)
        self._check = check
        self._look_again = look_again
        self._fetch_again = fetch_again
        self._link_changed = link_changed
        self._record = WorkerRecord(instance, tracked, check, writer, restored)

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
            self._counts.wire_error("internal")
            self._index.restart(self._tracked.worker)
            self._tracked.trust = Trust.PARTIAL if self._instance.applies(self._tracked) else Trust.NONE
            self._record.begin()
        for _ in range(done):
            signals.popleft()

    def refile(self) -> None:
        """Drop what was filed while nobody knew how to read it, and ask for it again. To be called when more is known.

        What waits for its engine to be recognised counts for nothing yet; it is looked at then.
        """
        if self._record.restored is not None or not self._index.misfiled(self._tracked.worker):
            return
        self._index.clear(self._tracked.worker)
        self._record.begin(anew=True)
        self._lost_part()
        _log.warning("blocks were filed before their format was known, fetching them again", **self._tracked.names)
        self._fetch_again("format")

    def _failed(self, signal: Signal) -> None:
        """A batch has come, even if it could not be applied."""
        if isinstance(signal, Batch) and (self._tracked.seq is None or self._tracked.seq < signal.seq):
            self._counts.came([signal])

    def _taken(self, signals: deque[Signal]) -> int:
        """How many signals were applied."""
        match signals[0]:
            case Batch():
                return self._batches(leading_batches(signals))
            case Clear(reason, trust):
                self._clear(reason, trust)
            case Resumed():
                self._record.resumed(self._index)
                self.refile()
            case Link(up):
                self._link(up)
            case Stale():
                self._tracked.catching_up = True
            case Current(sure):
                self._tracked.catching_up, self._tracked.behind = False, not sure
            case Gap(missing):
                self._tracked.behind = True
                self._counts.gap(missing)
            case BadFrame(reason):
                self._tracked.batches += 1
                self._counts.wire_error(reason)
        return 1

    def _link(self, up: bool) -> None:
        tracked = self._tracked
        tracked.link_up = up
        tracked.link_lost_at = None if up else time.monotonic()
        tracked.catching_up = tracked.behind = True
        if up and tracked.trust is Trust.NONE and not tracked.refused:
            tracked.trust = Trust.PARTIAL
        _log.info("event stream connected" if up else "event stream lost", **self._tracked.names)
        self._link_changed(up)

    def _clear(self, reason: str, trust: Trust) -> None:
        tracked = self._tracked
        self._record.not_resumed()
        if reason == "restart":
            self._unmixed()
        if reason in NEW_PROCESS:
            self._forget_process()
        else:
            self._index.clear(tracked.worker)
        if self._check is not None:
            self._check.cleared()
        tracked.doubtful = False
        self._record.begin(anew=reason not in OWN_REASONS)
        tracked.trust = trust if self._instance.applies(self._tracked) else Trust.NONE
        if reason != "start":
            self._look_again()
            self._counts.reset(reason)
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
        if self._is_judged or not self._instance.applies(self._tracked) or (run[0].replayed and self._tracked.asleep):
            applied = NOT_APPLIED
        else:
            payloads = [batch.payload for batch in run]
            applied = self._index.apply_payloads(self._tracked.worker, payloads, self._record.recording)
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
        self._counts.came(run)
        self._counts.seen(applied.ts, run[0].replayed, len(run))
        self._metrics.events(self._tracked.worker, count_applied(applied))
        if applied.matched or applied.unchecked:
            self._verified(applied.matched, 0, applied.unchecked)
        for batch, (ts, operations) in zip(run, applied.recorded, strict=False):
            self._record.save(batch, ts, operations)
        self.refile()

    def _begun(self, batch: Batch, applied: AppliedPayload) -> None:
        """One that the native core applied in part, or not without a loss."""
        self._counts.came([batch])
        delta, counts = applied.delta, count_applied(applied)
        if applied.done < applied.events:
            decoded, record = decode(batch.payload, self._instance.settings.engine), self._record.recording
            delta = self._index.apply(self._tracked.worker, decoded, record, applied)
            counts = count_types(decoded.events)
        self._counts.seen(applied.ts, batch.replayed)
        self._record.save(batch, applied.ts, self._told(delta, counts, batch))
        self.refile()

    def _batch(self, taken: Batch) -> None:
        """One that is decoded here."""
        tracked = self._tracked
        self._counts.came([taken])
        batch = self._decoded(taken)
        if batch is None:
            return
        self._counts.seen(batch.ts, taken.replayed)
        if self._check is not None and self._instance.unusable is None:
            batch = self._check.judged(batch)
        if not self._instance.applies(self._tracked):
            self._record.begin()
        elif not (taken.replayed and tracked.asleep):
            delta = self._index.apply(tracked.worker, batch, record=self._record.recording)
            self._record.save(taken, batch.ts, self._told(delta, count_types(batch.events), taken))
            self.refile()

    def _decoded(self, batch: Batch) -> EventBatch | None:
        try:
            return decode(batch.payload, self._instance.settings.engine)
        except WireError as error:
            self._counts.wire_error(error.reason)
            self._lost_part()
            self._record.save(batch, None, [])
            return None

    def _told(self, delta: Delta, counts: dict[str, int], batch: Batch) -> list[Recorded] | None:
        """What a batch did, to the metrics and the worker's trust; returns what is to be saved of it."""
        tracked = self._tracked
        if delta.cleared and not batch.replayed:  # the first clear of a replay is that of the process's start
            self._unmixed()
        self._metrics.events(self._tracked.worker, counts)
        if delta.cleared and not delta.lossy:
            tracked.trust = Trust.EXACT
        if delta.lossy:
            self._lost_part()
        if delta.skipped:
            self._counts.skipped(delta)
        if delta.matched or delta.mismatched or delta.unchecked:
            self._verified(delta.matched, delta.mismatched, delta.unchecked)
        return delta.operations

    def _unmixed(self) -> None:
        """What the engine held of requests with an adapter or an extra_key is gone, and no other one is on its way."""
        if self._tracked.mixes_namespaces and time.monotonic() - self._tracked.mixed_at > ON_ITS_WAY_S:
            self._tracked.mixes_namespaces = False

    def _verified(self, matched: int, mismatched: int, unchecked: int) -> None:
        """What the check of stored blocks found. One that is wrong has the consequence of a wrong root block."""
        self._metrics.verified(self._tracked.worker, matched, mismatched, unchecked)
        if mismatched and self._check is not None:
            self._check.contradicted()
            if not self._instance.applies(self._tracked):
                self._record.begin(anew=True)

    def _lost_part(self) -> None:
        """Something the engine said is lost: what is held may be wrong until its next clear."""
        if self._tracked.trust is Trust.EXACT:
            self._tracked.trust = Trust.PARTIAL
