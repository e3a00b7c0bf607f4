"""Short ways to make the store's values."""

from __future__ import annotations

from index.worker import Worker
from store.state import Entry, Lineage, RegisteredInstance, Snapshot

WORKER = Worker("vllm-0", 0)
T0 = 1_700_000_000_000
LINEAGE = Lineage(0, T0)


def entry(seq: int, lineage: Lineage = LINEAGE, worker: Worker = WORKER, body: bytes | None = None) -> Entry:
    """A batch every 10 ms, counted from T0 at 0."""
    return Entry(worker, lineage, seq, T0 + 10 * seq, b"delta %d" % seq if body is None else body)


def entries(first: int, last: int, lineage: Lineage = LINEAGE, worker: Worker = WORKER) -> list[Entry]:
    """All of them from `first` to `last`."""
    return [entry(seq, lineage, worker) for seq in range(first, last + 1)]


def snapshot(
    seq: int,
    lineage: Lineage = LINEAGE,
    worker: Worker = WORKER,
    *,
    ts_ms: int | None = None,
    fingerprint: str | None = None,
    body: bytes = b"all",
) -> Snapshot:
    """After a batch of `entries`; `ts_ms` None: its time."""
    return Snapshot(worker, lineage, seq, T0 + 10 * seq if ts_ms is None else ts_ms, fingerprint, body)


def instance(id: str, weight: float = 1.0, draining: bool = False) -> RegisteredInstance:
    """One added over HTTP."""
    settings = {"id": id, "engine": "vllm", "model": "m", "url": f"http://{id}:8000", "weight": weight, "labels": {}}
    return RegisteredInstance(id, settings, "http", draining)
