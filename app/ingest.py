"""From signals to index: one worker's batches are decoded, checked for identity, applied and counted, in order."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog
from xxhash import xxh3_64_digest

from app.fleet import Instance, TrackedWorker
from app.followed import Followed, Saved
from app.hash_check import HashCheck
from app.metrics import Metrics
from app.state_writer import StateWriter
from app.warm_start import Restored
from engine.stream import BadFrame, Batch, Clear, Gap, Link, Resumed, Signal
from engine.wire import WireError, decode
from index.delta import Delta
from index.dump import Recorded
from index.event import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, KVEvent
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

    def take(self, signal: Signal) -> None:
        """Apply one signal. A mistake of our own costs this worker what it holds, not the process."""
        try:
            self._take(signal)
        except Exception:
            _log.exception("a signal could not be applied", **self._tracked.names)
            self._wire_error("internal")
            self._index.restart(self._tracked.worker)
            self._tracked.trust = Trust.PARTIAL if self._usable() else Trust.NONE
            if self._writer is not None:
                self._writer.began(self._tracked.worker)

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

    def _take(self, signal: Signal) -> None:
        match signal:
            case Batch(seq, payload, replayed):
                self._batch(seq, payload, replayed)
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

    def _batch(self, seq: int, payload: bytes, replayed: bool) -> None:
        tracked = self._tracked
        tracked.seq = seq
        tracked.batches += 1
        self._metrics.batch(tracked.worker, replayed)
        tracked.replayed_batches += replayed
        if self._applied_plainly(seq, payload, replayed):
            return
        batch = self._decoded(seq, payload)
        if batch is None:
            return
        self._seen(batch.ts, replayed)
        if self._check is not None:
            batch = self._check.judged(batch)
        if not self._usable():
            self._begin_lineage()
        elif not (replayed and tracked.asleep):
            delta = self._index.apply(tracked.worker, batch, record=self._writer is not None)
            self._save(seq, payload, batch.ts, self._told(delta, _count_types(batch.events)))
            self.refile()

    def _applied_plainly(self, seq: int, payload: bytes, replayed: bool) -> bool:
        """The short way, for payloads that the native core can apply by itself, of a worker that is not judged."""
        tracked, record = self._tracked, self._writer is not None
        if not (self._check is None or self._check.settled) or not self._usable() or (replayed and tracked.asleep):
            return False
        applied = self._index.apply_payload(tracked.worker, payload, record)
        if applied is None:
            return False
        named = (("stored", applied.stores), ("removed", applied.removals))
        delta, counts = applied.delta, {name: count for name, count in named if count}
        if applied.done < applied.events:
            batch = decode(payload, self._instance.settings.engine)
            delta, counts = self._index.apply(tracked.worker, batch, record, applied), _count_types(batch.events)
        self._seen(applied.ts, replayed)
        self._save(seq, payload, applied.ts, self._told(delta, counts))
        self.refile()
        return True

    def _decoded(self, seq: int, payload: bytes) -> EventBatch | None:
        try:
            return decode(payload, self._instance.settings.engine)
        except WireError as error:
            self._wire_error(error.reason)
            self._lost_part()
            self._save(seq, payload, None, [])
            return None

    def _seen(self, ts: float, replayed: bool) -> None:
        if not replayed:  # a batch out of the replay is old, and says nothing of how far behind the stream is
            self._tracked.lag_s = max(0.0, time.time() - ts)
        self._tracked.usable_batches += 1

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
        return delta.operations

    def _save(self, seq: int, payload: bytes, ts: float | None, operations: list[Recorded] | None) -> None:
        """Hand what was applied to the state writer, which waits for nothing."""
        if self._writer is None or not self._usable():
            return
        tracked = self._tracked
        if self._check is not None and tracked.hash.identity is not None:
            self._writer.identified(tracked.worker, tracked.hash.identity, tracked.hash.status == "verified")
        plausible = ts is not None and 0.0 <= ts <= time.time() + FUTURE_S
        ts_ms = int(ts * 1000) if ts is not None and plausible else 0
        self._writer.applied(tracked.worker, Saved(seq, ts_ms, tracked.trust, xxh3_64_digest(payload)), operations)

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


def _count_types(events: list[KVEvent]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for event in events:
        match event:
            case BlockStored():
                name = "stored"
            case BlockRemoved():
                name = "removed"
            case AllBlocksCleared():
                name = "cleared"
            case _:
                name = "skipped"
        counts[name] = counts.get(name, 0) + 1
    return counts
