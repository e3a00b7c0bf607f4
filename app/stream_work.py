"""One worker's stream in its turns: what its listener has is taken and applied, for as long as the turn lasts."""

from __future__ import annotations

import time
from collections import deque

from app.ingest import WorkerIngest
from app.instance import Instance, TrackedWorker
from app.state_writer import StateWriter
from engine.listener import Clear, Listener, Signal


class StreamWork:
    """What `app.turns` calls: `work(end)` applies until `end`, and says whether there is more."""

    def __init__(
        self,
        instance: Instance,
        tracked: TrackedWorker,
        listener: Listener,
        ingest: WorkerIngest,
        writer: StateWriter | None,
    ) -> None:
        self._instance = instance
        self._tracked = tracked
        self._listener = listener
        self._ingest = ingest
        self._writer = writer
        self._signals: deque[Signal] = deque()

    def __call__(self, end: float) -> bool:
        """Take what is ready, when all that was taken before is applied; then apply."""
        signals = self._signals
        left = bool(signals)
        if not left:
            signals.extend(self._listener.take())
            if self._writer is not None and not any(isinstance(signal, Clear) for signal in signals):
                self._tell_process(self._writer)
        while signals:
            self._ingest.take(signals)
            if signals and time.perf_counter() > end:
                return True
        if not self._instance.tried:
            self._instance.tried = self._instance.all_current
        if self._writer is not None:
            self._tell_process(self._writer)
        return left or self._listener.more  # what the listener told while some was left was not looked at yet

    def _tell_process(self, writer: StateWriter) -> None:
        if (position := self._listener.position) is not None:
            writer.knows_process(self._tracked.worker, position.fingerprint)
