"""What of one worker's stream outlives the process; and what was restored of it, until it counts."""

from __future__ import annotations

import time

import structlog
from xxhash import xxh3_64_digest

from app.followed import Followed, Saved
from app.hash_check import HashCheck
from app.instance import Instance, TrackedWorker
from app.state_writer import StateWriter
from app.warm_start import Restored
from engine.stream import Batch
from index.dump import Recorded
from index.index import Index
from index.worker import Trust

_log = structlog.stdlib.get_logger("kvroute.ingest")

FUTURE_S = 86_400.0
"""An engine's time further ahead than this says nothing, and must not outrank all later ones in the state store."""


class WorkerRecord:
    """One worker's share of the state. `recording`: whether what is applied is to be handed to `save`.

    `restored` is what the worker holds from the state store, until its engine proves to be the same process or another.
    """

    def __init__(
        self,
        instance: Instance,
        tracked: TrackedWorker,
        check: HashCheck | None,
        writer: StateWriter | None,
        restored: Restored | None,
    ) -> None:
        self.recording = writer is not None
        self.restored = restored
        self._instance = instance
        self._tracked = tracked
        self._check = check
        self._writer = writer

    def save(self, batch: Batch, ts: float | None, operations: list[Recorded] | None) -> None:
        """Hand what was applied to the state writer, which waits for nothing."""
        tracked = self._tracked
        if self._writer is None or not self._instance.applies(tracked):
            return
        if self._check is not None and tracked.hash.identity is not None:
            self._writer.identified(tracked.worker, tracked.hash.identity, tracked.hash.status == "verified")
        plausible = ts is not None and 0.0 <= ts <= time.time() + FUTURE_S
        ts_ms = int(ts * 1000) if ts is not None and plausible else 0
        saved = Saved(batch.seq, ts_ms, tracked.trust, xxh3_64_digest(batch.payload))
        self._writer.applied(tracked.worker, saved, operations)

    def begin(self, anew: bool = False) -> None:
        """Another lineage. `anew`: the same batches are applied in another way now, what is stored must not stay."""
        if self._writer is not None:
            if anew:
                self._writer.discard(self._tracked.worker)
            self._writer.began(self._tracked.worker)

    def resumed(self, index: Index) -> None:
        """The engine is the one that the stored state was of: it counts from now on, if nothing is against it."""
        tracked, restored = self._tracked, self.restored
        assert restored is not None
        self.restored = None
        position, followed = restored
        tracked.doubtful, tracked.trust, tracked.seq = False, position.trust, position.next_seq - 1
        if self._writer is not None:
            self._writer.resumed(tracked.worker, followed)
        applies = self._instance.applies(tracked)
        fits = followed.identity is None or self._check is None
        if not applies or tracked.asleep or not (fits or self._is_still(followed)):
            index.restart(tracked.worker)
            tracked.trust = Trust.PARTIAL if self._instance.applies(tracked) else Trust.NONE
            if self._writer is not None:
                self._writer.discard(tracked.worker)
        _log.info("stored state joined the engine's stream", **tracked.names, trust=tracked.trust.value)

    def not_resumed(self) -> None:
        """If stored state waited to be resumed: it is of another process."""
        restored, self.restored = self.restored, None
        if restored is not None and self._writer is not None:
            self._writer.not_resumed(self._tracked.worker, restored.followed)

    def _is_still(self, followed: Followed) -> bool:
        assert self._check is not None
        assert followed.identity is not None
        return self._check.restored(followed.identity, followed.shared)
