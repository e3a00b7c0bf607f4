"""From signals to index: one worker's batches are decoded, checked for identity, applied and counted, in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from app.fleet import NO_IDENTITY, UNVERIFIED, Instance, TrackedWorker, adapter_label
from app.metrics import Metrics
from engine.identity import HashReport, ModelIdentity
from engine.stream import BadFrame, Batch, Clear, Gap, Link, Signal
from engine.wire import WireError, decode
from index.block_hash import HashIdentity
from index.event import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, KVEvent
from index.index import Index
from index.worker import Medium, Trust

_log = structlog.stdlib.get_logger("kvroute.ingest")

NEW_PROCESS = frozenset({"start", "restart", "reconnect"})
"""Reasons of a `Clear` after which everything learnt from the process is open again."""

JUDGED_FAILURES = 4
JUDGED_EVERY = 256
"""A failed identity check tries every candidate; after some failures only every so many roots are looked at again."""


@dataclass(slots=True)
class _Check:
    """How far the identity check of one engine process got."""

    failures: int = 0
    roots: int = 0

    def due(self) -> bool:
        self.roots += 1
        return self.failures < JUDGED_FAILURES or self.roots % JUDGED_EVERY == 0


class WorkerIngest:
    """Applies one worker's stream to the index. Synchronous, so a batch is atomic for every route."""

    def __init__(
        self,
        instance: Instance,
        tracked: TrackedWorker,
        index: Index,
        metrics: Metrics,
        *,
        identity: ModelIdentity | None,
        enforce: bool,
        resync: Callable[[str], object],
    ) -> None:
        """`identity` is None for SGLang. `resync` asks the listener to forget and replay from 0, for a reason."""
        self._instance = instance
        self._tracked = tracked
        self._index = index
        self._identity = identity
        self._enforce = enforce
        self._metrics = metrics
        self._resync = resync
        self._check = _Check()

    def take(self, signal: Signal) -> None:
        """Apply one signal."""
        match signal:
            case Batch(seq, payload, replayed):
                self._batch(seq, payload, replayed)
            case Clear(reason, trust):
                self._clear(reason, trust)
            case Link(up):
                self._link(up)
            case Gap(missing):
                self._tracked.gaps += 1
                self._metrics.gap(self._tracked.worker, missing)
                _log.warning("event gap", **self._names(), missing=missing)
            case BadFrame(reason):
                self._wire_error(reason)

    def _link(self, up: bool) -> None:
        tracked = self._tracked
        tracked.link_up = up
        tracked.link_lost_at = None if up else time.monotonic()
        if up and tracked.trust is Trust.NONE and not tracked.refused:
            tracked.trust = Trust.PARTIAL
        _log.info("event stream connected" if up else "event stream lost", **self._names())

    def _clear(self, reason: str, trust: Trust) -> None:
        tracked = self._tracked
        if reason in NEW_PROCESS:
            self._index.restart(tracked.worker)
            self._check = _Check()
            tracked.refused, tracked.seq = False, None
            tracked.hash = NO_IDENTITY if self._identity is None else UNVERIFIED
            tracked.advice = None
        else:
            self._index.clear(tracked.worker)
        tracked.trust = Trust.NONE if tracked.refused else trust
        if reason != "start":
            tracked.resets[reason] += 1
            self._metrics.reset(tracked.worker, reason)
            _log.warning("worker cleared", **self._names(), reason=reason, trust=trust.value)

    def _batch(self, seq: int, payload: bytes, replayed: bool) -> None:
        tracked = self._tracked
        tracked.seq = seq
        tracked.batches += 1
        self._metrics.batch(tracked.worker, replayed)
        tracked.replayed_batches += replayed
        try:
            batch = decode(payload, self._instance.settings.engine)
        except WireError as error:
            self._wire_error(error.reason)
            self._lost_part()
            return
        tracked.lag_s = max(0.0, time.time() - batch.ts)
        tracked.usable_batches += 1
        if self._identity is not None:
            batch = self._judged(self._identity, batch)
        if not self._usable():
            return
        self._apply(batch)

    def _apply(self, batch: EventBatch) -> None:
        tracked = self._tracked
        delta = self._index.apply(tracked.worker, batch)
        self._metrics.events(tracked.worker, _count_types(batch.events))
        if delta.cleared and not delta.lossy:
            tracked.trust = Trust.EXACT
        if delta.lossy:
            self._lost_part()
        for reason, count in delta.skipped.items():
            tracked.wire_errors[reason] += count
            self._metrics.skipped(tracked.worker, reason, count)

    def _usable(self) -> bool:
        return not self._tracked.refused

    def _lost_part(self) -> None:
        """Something the engine said is lost: what is held may be wrong until its next clear."""
        if self._tracked.trust is Trust.EXACT:
            self._tracked.trust = Trust.PARTIAL

    def _wire_error(self, reason: str) -> None:
        self._tracked.wire_errors[reason] += 1
        self._metrics.wire_error(self._tracked.worker, reason)
        if self._tracked.wire_errors[reason] == 1:
            _log.warning("unusable event message", **self._names(), reason=reason)

    def _judged(self, identity: ModelIdentity, batch: EventBatch) -> EventBatch:
        """Look at the batch's first blocks; returns it with adapters told apart by the path they were loaded from."""
        relabelled: list[KVEvent] | None = None
        for position, event in enumerate(batch.events):
            if not isinstance(event, BlockStored) or event.parent is not None:
                continue
            if event.lora_name is None:
                self._judge_base(identity, event)
                continue
            label = self._adapter_label(identity, event, event.lora_name)
            if label != event.lora_name:
                relabelled = relabelled if relabelled is not None else list(batch.events)
                relabelled[position] = _relabelled(event, label)
        return batch if relabelled is None else batch._replace(events=relabelled)

    def _judge_base(self, identity: ModelIdentity, event: BlockStored) -> None:
        tracked = self._tracked
        if tracked.hash.status == "verified" or not self._check.due():
            return
        report = identity.judge(event, {})
        if report is None:
            return
        if report.status == "verified":
            self._verified(report)
        else:
            self._mismatch(report)

    def _verified(self, report: HashReport) -> None:
        tracked = self._tracked
        tracked.hash = report
        assert report.identity is not None
        self._index.identify(tracked.worker, report.identity, shared=True)
        _log.info("hash identity verified", **self._names(), **_words(report.identity))
        if tracked.refused:
            tracked.refused, tracked.advice, tracked.trust = False, None, Trust.PARTIAL
            self._resync("identity")

    def _mismatch(self, report: HashReport) -> None:
        tracked = self._tracked
        self._check.failures += 1
        first = tracked.hash.status != "mismatch"
        if first or report.identity is not None:
            tracked.hash = report
        if report.identity is not None and not self._enforce:
            self._index.identify(tracked.worker, report.identity, shared=False)
        if first and self._enforce:
            self._index.restart(tracked.worker)
            tracked.refused, tracked.trust, tracked.advice = True, Trust.NONE, report.advice
            _log.error("worker refused: its block hashes are not the fleet's", **self._names(), advice=report.advice)

    def _adapter_label(self, identity: ModelIdentity, event: BlockStored, name: str) -> str:
        """An adapter's blocks count for requests only while it is served from the path they were hashed with."""
        label = adapter_label(self._instance, self._tracked, name)
        path = self._instance.adapters.get(name)
        if path is None or event.medium is not Medium.GPU or self._tracked.hash.status != "verified":
            return label
        report = identity.judge(event, {name: path})
        return label if report is not None and report.status == "verified" else f"{name}\0old"

    def _names(self) -> dict[str, object]:
        return {
            "instance": self._tracked.worker.instance,
            "dp_rank": self._tracked.worker.dp_rank,
            "seq": self._tracked.seq,
        }


def _relabelled(event: BlockStored, label: str) -> BlockStored:
    """The event under another adapter name, also where its extra keys repeat it."""
    name, extras = event.lora_name, event.extra_keys
    if extras is not None:
        extras = [(label, *extra[1:]) if extra and extra[0] == name else extra for extra in extras]
    return event._replace(lora_name=label, extra_keys=extras)


def _words(identity: HashIdentity) -> Mapping[str, object]:
    return {"algorithm": identity.algorithm, "seed": identity.seed}


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
