"""What is counted of one worker's stream: shown with the worker, and in the metrics."""

from __future__ import annotations

import time

import structlog

from app.instance import TrackedWorker
from app.metrics import Metrics
from engine.stream import Batch
from index.delta import Delta

_log = structlog.stdlib.get_logger("kvroute.ingest")


class StreamCounts:
    """Counts of one worker, in both places."""

    def __init__(self, tracked: TrackedWorker, metrics: Metrics) -> None:
        self._tracked = tracked
        self._metrics = metrics

    def came(self, run: list[Batch]) -> None:
        """Batches that were all live, or all replayed, whatever becomes of them."""
        tracked, replayed = self._tracked, run[0].replayed
        tracked.seq = run[-1].seq
        tracked.batches += len(run)
        self._metrics.batches(tracked.worker, len(run), replayed)
        if replayed:
            tracked.replayed_batches += len(run)

    def seen(self, ts: float, replayed: bool, count: int = 1) -> None:
        """Batches that can be used, the last one made at `ts`."""
        if not replayed:  # a batch out of the replay is old, and says nothing of how far behind the stream is
            self._tracked.lag_s = max(0.0, time.time() - ts)
        self._tracked.usable_batches += count

    def skipped(self, delta: Delta) -> None:
        """Events of a batch that were passed over."""
        for reason, count in delta.skipped.items():
            self._tracked.wire_errors[reason] += count
            self._metrics.skipped(self._tracked.worker, reason, count)

    def gap(self, missing: int) -> None:
        """Batches that the live stream skipped."""
        self._tracked.gaps += 1
        self._metrics.gap(self._tracked.worker, missing)
        _log.warning("event gap", **self._tracked.names, missing=missing)

    def reset(self, reason: str) -> None:
        """The worker was cleared."""
        self._tracked.resets[reason] += 1
        self._metrics.reset(self._tracked.worker, reason)

    def wire_error(self, reason: str) -> None:
        """A message that cannot be used."""
        self._tracked.wire_errors[reason] += 1
        self._metrics.wire_error(self._tracked.worker, reason)
        if self._tracked.wire_errors[reason] == 1:
            _log.warning("unusable event message", **self._tracked.names, reason=reason)
