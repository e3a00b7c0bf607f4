"""One event with another block size than the engine's costs that event and nothing that is held."""

from __future__ import annotations

from array import array

import pytest

from index.event import BlockStored, EventBatch
from index.index import Index
from index.pool import WorkerSpec
from index.prompt import Prompt
from index.worker import EngineKind, Worker

pytestmark = pytest.mark.usefixtures("core")

WORKER = Worker("one", 0)


def stored(hashes: list[int], tokens: range, size: int, parent: int | None = None) -> BlockStored:
    return BlockStored(list(hashes), parent, array("I", tokens).tobytes(), size)


def matched(index: Index) -> int:
    prompt = Prompt(array("I", range(1, 10)).tobytes())
    match = index.match("m", prompt, {WORKER}).get(WORKER)
    return match.matched if match else 0


@pytest.mark.parametrize("engine", list(EngineKind))
@pytest.mark.parametrize("size", [8, 1 << 20])
def test_a_larger_block_size_in_mid_stream_costs_only_its_event(engine: EngineKind, size: int) -> None:
    index = Index()
    index.add(WORKER, WorkerSpec("m", engine))
    index.apply(WORKER, EventBatch(1.0, [stored([11, 12], range(1, 9), 4)], 0))
    odd = stored([13], range(20, 28), size) if size == 8 else stored([13], range(20, 28), size)._replace(tokens=b"0000")
    delta = index.apply(WORKER, EventBatch(2.0, [odd], 0))
    assert delta.lossy
    assert sum(delta.skipped.values()) == 1
    assert matched(index) == 8
    assert index.block_size(WORKER) == 4
