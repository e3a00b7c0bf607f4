"""Stored state in a table: what `kvroute state show` says of each worker, and of the registry."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from app.saved_state import SavedBatch, SavedWorker, Unreadable, unpack_batch, unpack_worker
from app.shown import shown
from index.block_hash import HashIdentity
from index.dump import BlockDump, RadixDump
from index.index import Index
from index.pool import WorkerSpec
from index.worker import EngineKind, Trust, Worker
from store.state import Lineage, RegisteredInstance, Stored

NO_COUNTS = (0, 0, 0, 0)


class StoredWorker(NamedTuple):
    """One worker's state. `fault`: why a router will not use it; the values after it are then as far as they go."""

    worker: Worker
    lineage: Lineage
    seq: int
    ts_ms: int
    snapshot_bytes: int
    log_entries: int
    fault: str | None = None
    engine: EngineKind | None = None
    trust: Trust | None = None
    identity: HashIdentity | None = None
    counts: tuple[int, int, int, int] = NO_COUNTS


def read_stored(stored: Stored) -> StoredWorker:
    """What is stored, with the blocks counted as a warm start would hold them."""
    snapshot = stored.snapshot
    last = stored.last
    read = StoredWorker(
        snapshot.worker, snapshot.lineage, last.seq, last.ts_ms, len(snapshot.body), len(stored.entries)
    )
    try:
        saved = unpack_worker(snapshot.body)
        batches = [unpack_batch(entry.body) for entry in stored.entries]
        engine = _engine(saved, batches)
        counts = NO_COUNTS if engine is None else _counts(snapshot.worker, engine, saved, batches)
    except (Unreadable, ValueError, KeyError, TypeError, AssertionError) as error:
        return read._replace(fault=str(error) or type(error).__name__)
    trust = batches[-1].trust if batches else saved.trust
    return read._replace(engine=engine, trust=trust, identity=saved.identity, counts=counts)


def workers_table(rows: Iterable[tuple[Worker, StoredWorker | None]], now_s: float) -> Table:
    """One row per worker; None: stored, and not readable by this release."""
    columns = ("worker", "engine", "lineage", "seq", "age", "snapshot", "log", "trust", "identity")
    made = Table(*columns, "gpu", "cpu", "disk", "other", title="workers")
    for worker, row in rows:
        name = f"{worker.instance}/{worker.dp_rank}"
        cells = (name, "", "", "", "", "", "", "not readable") if row is None else (name, *_cells(row, now_s))
        made.add_row(*(Text(shown(cell, 140)) for cell in cells))
    return made


def instances_table(instances: Iterable[RegisteredInstance]) -> Table:
    """The registry."""
    made = Table("id", "engine", "model", "url", "from", "draining", title="instances")
    for one in instances:
        named = (one.settings.get(key, "?") for key in ("engine", "model", "url"))
        cells = (one.id, *named, one.source, "yes" if one.draining else "no")
        made.add_row(*(Text(shown(cell, 140)) for cell in cells))
    return made


def _cells(row: StoredWorker, now_s: float) -> tuple[str, ...]:
    origin = f"{row.lineage.origin_seq}@{row.lineage.origin_ts_ms}"
    kind = row.engine.value if row.engine else "?"
    numbers = (str(row.seq), _age(now_s - row.ts_ms / 1000), f"{row.snapshot_bytes:,} B", str(row.log_entries))
    if row.fault is not None:
        return (kind, origin, *numbers, "not usable", row.fault)
    identity = "none" if row.identity is None else f"{row.identity.algorithm}, seed {_seed(row.identity.seed)}"
    return (kind, origin, *numbers, row.trust.value if row.trust else "?", identity, *map(str, row.counts))


def _seed(seed: str | None) -> str:
    return "none" if seed is None else repr(seed)


def _age(seconds: float) -> str:
    if seconds < 120:
        return f"{max(seconds, 0):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _engine(saved: SavedWorker, batches: list[SavedBatch]) -> EngineKind | None:
    """None: nothing was stored yet that would tell."""
    match saved.dump:
        case BlockDump():
            return EngineKind.VLLM
        case RadixDump():
            return EngineKind.SGLANG
    kinds = {"S": EngineKind.VLLM, "R": EngineKind.VLLM, "s": EngineKind.SGLANG, "r": EngineKind.SGLANG}
    letters = (operation[0] for batch in batches for operation in batch.operations)
    return next((kinds[letter] for letter in letters if letter in kinds), None)


def _counts(
    worker: Worker, engine: EngineKind, saved: SavedWorker, batches: list[SavedBatch]
) -> tuple[int, int, int, int]:
    index = Index()
    index.add(worker, WorkerSpec("", engine))
    if saved.identity is not None and engine is EngineKind.VLLM:
        index.identify(worker, saved.identity, saved.shared)
    if saved.dump is not None:
        index.restore(worker, saved.dump)
    for batch in batches:
        if not index.redo(worker, map(tuple, batch.operations)):
            raise ValueError("its log does not fit its snapshot")
    return index.counts(worker)
