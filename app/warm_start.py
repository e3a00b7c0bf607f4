"""Warm start: a worker's stored state back into the index, before its engine is followed from there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import structlog

from app.fleet import Instance, TrackedWorker
from app.saved_state import SavedWorker, Unreadable, unpack_batch, unpack_worker
from app.state_writer import Followed
from engine.identity import ModelIdentity
from engine.stream import Position
from index.index import Index
from store.state import StateStore, Stored

_log = structlog.stdlib.get_logger("kvroute.state")


class Restored(NamedTuple):
    """A worker as stored: where its stream goes on, and what the state writer knows of it."""

    position: Position
    followed: Followed


@dataclass(frozen=True, slots=True)
class WarmStart:
    """One worker's way back into the index. `identity` is None for SGLang.

    Nobody knows yet whether the engine is still the same process: a restored worker is `doubtful` until the listener
    says so.
    """

    index: Index
    instance: Instance
    tracked: TrackedWorker
    identity: ModelIdentity | None

    async def load(self, store: StateStore) -> Restored | None:
        """Load the worker's state into the index. None, and nothing held: there is none that can be used."""
        tracked = self.tracked
        stored = await store.load(tracked.worker)
        if stored is None:
            return None
        names = {"instance": tracked.worker.instance, "dp_rank": tracked.worker.dp_rank}
        try:
            restored = self._restore(stored)
        except (Unreadable, ValueError, KeyError, TypeError, AssertionError) as error:
            _log.warning("stored state not used", **names, reason=str(error) or type(error).__name__)
            self.index.restart(tracked.worker)
            return None
        tracked.doubtful = True
        _log.info("stored state loaded", **names, seq=restored.position.next_seq - 1, batches=len(stored.entries))
        return restored

    def _restore(self, stored: Stored) -> Restored:
        saved, last = unpack_worker(stored.snapshot.body), stored.snapshot
        self._hold(saved)
        trust, digest, seq, ts_ms = saved.trust, saved.digest, last.seq, last.ts_ms
        for entry in stored.entries:
            batch = unpack_batch(entry.body)
            if not self.index.redo(self.tracked.worker, map(tuple, batch.operations)):
                raise ValueError(f"batch {entry.seq} does not fit what was stored before it")
            seq, ts_ms, trust, digest = entry.seq, entry.ts_ms, batch.trust, batch.digest
        followed = Followed(
            fingerprint=last.fingerprint,
            identity=saved.identity,
            shared=saved.shared,
            lineage=last.lineage,
            seq=seq,
            ids_ms=ts_ms,
            trust=trust,
            digest=digest,
            clean=True,
            since_snapshot=len(stored.entries),
        )
        return Restored(Position(seq + 1, last.fingerprint, digest, trust), followed)

    def _hold(self, saved: SavedWorker) -> None:
        worker, dump = self.tracked.worker, saved.dump
        self.index.restart(worker)
        if saved.identity is not None and self.identity is not None:
            if saved.shared and not self.identity.accept(saved.identity):
                raise ValueError("its hash identity is not the expected one any more")
            self.index.identify(worker, saved.identity, saved.shared)
        if dump is not None:
            self.index.restore(worker, dump)
