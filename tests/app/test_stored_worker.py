"""Stored state as a table shows it, where a real store seldom leads."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from app.saved_state import pack_batch, pack_worker
from app.stored_worker import StoredWorker, read_stored, workers_table
from engine.wire import decode
from index.dump import Recorded
from index.index import Index
from index.pool import WorkerSpec
from index.worker import EngineKind, Trust, Worker
from store.state import Entry, Lineage, Snapshot, Stored
from tests.support.engine_events import prompt, sglang_stored, vllm_stored
from tests.support.publisher import batch

WORKER, LINEAGE = Worker("a", 0), Lineage(0, 1_000)
EMPTY = pack_worker(Trust.EXACT, None, None, shared=False, dump=None)


def stored(*batches: list[Recorded], body: bytes = EMPTY) -> Stored:
    entries = [
        Entry(WORKER, LINEAGE, seq, 1_000 + seq, pack_batch(Trust.PARTIAL, None, operations))
        for seq, operations in enumerate(batches, 1)
    ]
    return Stored(Snapshot(WORKER, LINEAGE, 0, 1_000, None, body), entries)


def recorded(engine: EngineKind, event: dict[str, Any]) -> list[Recorded]:
    """What is recorded of a store that joins an earlier one."""
    index = Index()
    index.add(WORKER, WorkerSpec("m", engine))
    first = sglang_stored(prompt(9)) if engine is EngineKind.SGLANG else vllm_stored(prompt(9))
    index.apply(WORKER, decode(batch(1.0, [first]), engine))
    operations = index.apply(WORKER, decode(batch(1.0, [event]), engine), record=True).operations
    assert operations
    return operations


def test_before_any_block_nothing_tells_the_engine() -> None:
    read = read_stored(stored([], [("C",)]))
    assert (read.engine, read.fault, read.counts, read.trust) == (None, None, (0, 0, 0, 0), Trust.PARTIAL)
    assert (read.seq, read.ts_ms, read.log_entries) == (2, 1_002, 2)


def test_sglang_s_log_alone_tells_the_engine_and_holds_its_pages() -> None:
    read = read_stored(stored([], recorded(EngineKind.SGLANG, sglang_stored(prompt(1)))))
    assert (read.engine, read.fault, read.counts) == (EngineKind.SGLANG, None, (64, 0, 0, 0))


def test_vllm_s_first_blocks_are_never_in_a_log_alone() -> None:
    """Only a snapshot tells block size and groups; a router would not use it either."""
    read = read_stored(stored([], recorded(EngineKind.VLLM, vllm_stored(prompt(1)))))
    assert read.fault == "its log does not fit its snapshot"


def test_a_log_that_does_not_fit_its_snapshot_is_not_usable() -> None:
    read = read_stored(stored([("S", "not a group")]))
    assert read.fault == "its log does not fit its snapshot"
    assert read.log_entries == 1


@pytest.mark.parametrize(("age_s", "shown"), [(-5, "0 s"), (119, "119 s"), (150, "2 min"), (9_000, "2.5 h")])
def test_ages_are_short(age_s: float, shown: str) -> None:
    row = StoredWorker(WORKER, LINEAGE, 7, 1_000_000, 12_345, 3)
    out = StringIO()
    Console(file=out, width=200).print(workers_table([(WORKER, row)], 1_000 + age_s))
    assert f" {shown} " in out.getvalue()
    assert "12,345 B" in out.getvalue()
