"""Warm start: a worker's stored state back into the index, before its engine is followed from there."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from app.followed import Followed
from app.instance import Instance, TrackedWorker
from app.saved_state import SavedBatch, SavedWorker, Unreadable, unpack_batch, unpack_worker
from engine.identity import ModelIdentity
from engine.stream import Position
from index.index import Index
from index.worker import Trust
from store.state import StateStore, Stored

_log = structlog.stdlib.get_logger("kvroute.state")

SLICE_S = 0.005
"""How long stored batches are done again before requests get their turn."""


class Restored(NamedTuple):
    """A worker as stored: where its stream goes on, and what the state writer knows of it."""

    position: Position
    followed: Followed


@dataclass(frozen=True, slots=True)
class WarmStart:
    """One worker's way back into the index. `identity` is its model's, None for SGLang; `enforce` as in the settings.

    Nobody knows yet whether the engine is still the same process: a restored worker is `doubtful` until the listener
    says so.
    """

    index: Index
    instance: Instance
    tracked: TrackedWorker
    identity: ModelIdentity | None
    enforce: bool = True

    async def load(self, store: StateStore) -> Restored | None:
        """Load the worker's state into the index. None, and nothing held: there is none that can be used.

        Raises StateError. Meanwhile nobody else may apply anything to the worker.
        """
        tracked = self.tracked
        stored = await store.load(tracked.worker)
        if stored is None:
            return None
        whole_log = await store.log_length(tracked.worker) <= len(stored.entries)
        names = {"instance": tracked.worker.instance, "dp_rank": tracked.worker.dp_rank}
        tracked.doubtful, tracked.trust = True, Trust.PARTIAL if tracked.link_up else Trust.NONE
        try:
            restored = await self._restore(stored, whole_log)
        except (Unreadable, ValueError, KeyError, TypeError, AssertionError) as error:
            _log.warning("stored state not used", **names, reason=str(error) or type(error).__name__)
            self.index.restart(tracked.worker)
            tracked.doubtful = False
            await store.forget(tracked.worker)  # else what comes would be written behind it
            return None
        _log.info("stored state loaded", **names, seq=restored.position.next_seq - 1, batches=len(stored.entries))
        return restored

    async def _restore(self, stored: Stored, whole_log: bool) -> Restored:
        """`whole_log`: no entry is left that does not join; else a snapshot must replace them."""
        saved, last = unpack_worker(stored.snapshot.body), stored.snapshot
        shared = self._hold(saved)
        known = _Known(saved)
        began = time.perf_counter()
        for entry in stored.entries:
            batch = unpack_batch(entry.body)
            if not self.index.redo(self.tracked.worker, map(tuple, batch.operations)):
                raise ValueError(f"batch {entry.seq} does not fit what was stored before it")
            known.redone(batch)
            if time.perf_counter() - began > SLICE_S:
                await asyncio.sleep(0)
                began = time.perf_counter()
        if self.index.misfiled(self.tracked.worker):
            raise ValueError("it was filed before its event format was known")
        end = stored.last
        followed = Followed(
            fingerprint=last.fingerprint,
            stored_fingerprint=last.fingerprint,
            identity=saved.identity,
            shared=shared,
            lineage=last.lineage,
            seq=end.seq,
            ids_ms=end.ts_ms,
            trust=known.trust,
            digest=known.digest,
            clean=whole_log and shared == saved.shared,
            last=stored.entries[-1] if stored.entries else None,
            since_snapshot=len(stored.entries),
        )
        return Restored(Position(end.seq + 1, last.fingerprint, known.digest, known.trust), followed)

    def _hold(self, saved: SavedWorker) -> bool:
        """Hold what the snapshot has; whether its hashes are the fleet's."""
        worker, shared = self.tracked.worker, False
        self.index.restart(worker)
        if saved.identity is not None and self.identity is not None:
            expected = self.identity.expected
            shared = saved.identity == expected or (expected is None and saved.shared)
            if not shared and (saved.shared or self.enforce):
                raise ValueError("its hash identity is not the expected one any more")
            self.index.identify(worker, saved.identity, shared)
        if saved.dump is not None:
            self.index.restore(worker, saved.dump)
        return shared


class _Known:
    """What is known after each batch: trust is partial at most while stores are missing that waited for a parent."""

    def __init__(self, saved: SavedWorker) -> None:
        self.trust, self.digest = saved.trust, saved.digest
        self._whole = saved.dump is None or saved.dump.whole

    def redone(self, batch: SavedBatch) -> None:
        """A batch was done again."""
        self._whole = self._whole or any(operation[0] == "C" for operation in batch.operations)
        self.trust, self.digest = batch.trust, batch.digest
        if self.trust is Trust.EXACT and not self._whole:
            self.trust = Trust.PARTIAL
