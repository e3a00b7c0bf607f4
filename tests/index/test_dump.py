"""Dumps restore to equal holdings, and recorded operations done again on them keep them equal."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.wire import decode
from index.dump import BlockDump, Dump, RadixDump, Recorded
from index.event import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineHash,
    EventBatch,
    KVEvent,
    SkippedEvent,
)
from index.index import Index
from index.pool import WorkerSpec
from index.prompt import MultimodalItem, Prompt
from index.worker import EngineKind, Medium, Worker
from tests.support.golden import Row, Stream, sglang_stream, vllm_stream, vllm_streams

pytestmark = pytest.mark.usefixtures("core")

WORKER = Worker("one", 0)
OTHER = Worker("other", 0)
SGLANG = ["page1", "page16", "page1_dynamo", "page16_eagle", "fuzz_page1", "page16_host_tier"]
STREAMS = [*(("vllm", name) for name in vllm_streams()), *(("sglang", name) for name in SGLANG)]


def load(engine: str, name: str) -> Stream:
    return vllm_stream(name) if engine == "vllm" else sglang_stream(name)


def index_of(stream: Stream) -> Index:
    index = Index()
    eagle = stream.settings.get("speculative") == "eagle"
    index.add(WORKER, WorkerSpec("m", EngineKind(stream.engine), eagle, stream.settings.get("prefix_match_unit")))
    return index


def canonical(dump: Dump | None) -> object:
    match dump:
        case None:
            return None
        case BlockDump():
            slots = sorted(
                (slot.group, slot.medium, sorted(_pairs(slot.hashes, slot.keys), key=repr), sorted(slot.counts.items()))
                for slot in dump.slots
            )
            return dump.block_size, sorted(dump.groups), dump.partial_unit, dump.settled, slots
        case RadixDump():
            pages: set[tuple[int, bytes, bytes]] = set()
            for run in dump.runs:
                pages |= {(run.medium, run.hashes[at : at + 8], b"") for at in range(0, len(run.hashes), 8)}
            return dump.page_size, dump.bigrams, pages, dump.copies


def _pairs(hashes: list[int | bytes], keys: bytes) -> list[tuple[int | bytes, bytes]]:
    return [(block, keys[8 * at : 8 * at + 8]) for at, block in enumerate(hashes)]


def answers(index: Index, rows: list[Row]) -> list[object]:
    found: list[object] = []
    for row in rows:
        items = tuple(
            MultimodalItem(item["hash"], item["offset"], item["length"]) for item in row.fields.get("mm_items", ())
        )
        prompt = Prompt(
            array("I", row.tokens).tobytes(),
            row.fields.get("lora"),
            row.fields.get("cache_salt"),
            row.fields.get("extra_key"),
            items,
        )
        match = index.match("m", prompt, {WORKER}).get(WORKER)
        found.append(None if match is None else match[1:])
    return found


@pytest.mark.no_cover
@pytest.mark.parametrize(("engine", "name"), STREAMS)
def test_a_dump_at_any_point_and_the_operations_after_it_give_the_same_holdings(engine: str, name: str) -> None:
    stream = load(engine, name)
    original, copies = index_of(stream), list[Index]()
    rows = list({(row.name, str(row.fields)): row for row in stream.rows}.values())
    unrecorded = 0
    for number, (_, payload) in enumerate(sorted(stream.payloads.items())):
        batch = decode(payload, EngineKind(engine))
        delta = original.apply(WORKER, batch, record=True)
        operations: list[Recorded] | None = delta.operations
        if operations is None:
            unrecorded += 1
            copies = []
        for copy in copies:
            assert operations is not None
            assert copy.redo(WORKER, operations)
        if number % 7 == 0:
            copy = index_of(stream)
            dump = original.dump(WORKER)
            if dump is not None:
                copy.restore(WORKER, dump)
            copies.append(copy)
        if number % 10 == 0:
            expected = canonical(original.dump(WORKER)), answers(original, rows)
            assert all((canonical(copy.dump(WORKER)), answers(copy, rows)) == expected for copy in copies)
    assert unrecorded <= 3
    assert len(copies) > 1
    for copy in copies:
        copy.remove(WORKER)
        assert list(copy.stats()) == []


@pytest.mark.no_cover
@settings(max_examples=300)
@given(st.integers(0, 1 << 32))
def test_odd_events_are_recorded_as_they_were_applied(seed: int) -> None:
    dice, asked = Random(seed), [Prompt(array("I", range(length)).tobytes()) for length in (3, 5, 9, 13)]
    original, copies = fresh(), list[Index]()
    for _ in range(12):
        batch = EventBatch(1.0, [odd_event(dice) for _ in range(dice.randint(1, 3))], 0)
        delta = original.apply(WORKER, batch, record=True)
        if delta.operations is None:
            copies = []
        for copy in copies:
            assert copy.redo(WORKER, delta.operations or [])
            assert [copy.match("m", one, [WORKER]) for one in asked] == [
                original.match("m", one, [WORKER]) for one in asked
            ]
            assert copy.counts(WORKER) == original.counts(WORKER)
        dump = original.dump(WORKER)
        if dump is not None and dump.whole:
            copies = [*copies[-2:], fresh()]
            copies[-1].restore(WORKER, dump)


def fresh() -> Index:
    index = Index()
    index.add(WORKER, WorkerSpec("m", EngineKind.VLLM))
    return index


def odd_event(dice: Random) -> KVEvent:
    """A store or removal of a few of the blocks 1 to 6 (two tokens each); some stores have another shape."""
    first, count = dice.randint(1, 4), dice.randint(1, 2)
    blocks: list[EngineHash] = list(range(first, first + count))
    medium, group = dice.choice([Medium.GPU, Medium.GPU, Medium.CPU]), dice.choice([0, 0, 0, 1])
    deed = dice.random()
    if deed < 0.35:
        return BlockRemoved(blocks, medium, group)
    if deed < 0.4:
        return SkippedEvent("malformed", lossy=True)
    if deed < 0.43:
        return AllBlocksCleared()
    tokens = list(range((first - 1) * 2, (first - 1 + count) * 2))
    shape = dice.random()
    if shape < 0.2:
        tokens = tokens[:-1] if shape < 0.1 else [*tokens, 99]
    kind, window = ("full_attention", None) if group == 0 else ("sliding_window", 4)
    parent = first - 1 if first > 1 else None
    size = 4 if dice.random() < 0.05 else 2
    packed = array("I", tokens).tobytes()
    return BlockStored(blocks, parent, packed, size, medium, group=group, kind=kind, window=window)


@pytest.mark.parametrize("late", [False, True])
def test_a_block_size_that_was_certain_stays_so(late: bool) -> None:
    """Whether it was when the dump was made, or became so after that."""
    original, copy = fresh(), fresh()
    original.apply(WORKER, EventBatch(1.0, [stored([1], None, [1, 2])], 0))
    settling = EventBatch(2.0, [stored([2, 3], 1, [3, 4, 5, 6])], 0)
    if not late:
        original.apply(WORKER, settling)
    dump = original.dump(WORKER)
    assert dump is not None
    copy.restore(WORKER, dump)
    if late:
        assert copy.redo(WORKER, original.apply(WORKER, settling, record=True).operations or [])
    larger = BlockStored([4], 3, array("I", range(8)).tobytes(), 8)
    for index in (original, copy):
        assert index.apply(WORKER, EventBatch(3.0, [larger], 0)).skipped == {"block_size": 1}
    assert canonical(copy.dump(WORKER)) == canonical(original.dump(WORKER))


def test_a_dump_from_before_certain_sizes_were_kept_is_read() -> None:
    index = fresh()
    index.apply(WORKER, EventBatch(1.0, [stored([1, 2], None, [1, 2, 3, 4])], 0))
    dump = index.dump(WORKER)
    assert isinstance(dump, BlockDump)
    assert dump.settled == [0]
    former = msgspec.msgpack.decode(msgspec.msgpack.encode(dump[:-1]), type=BlockDump)
    assert former == dump._replace(settled=[])


def test_a_dump_of_another_kind_is_refused() -> None:
    index = Index()
    index.add(WORKER, WorkerSpec("m", EngineKind.VLLM))
    with pytest.raises(ValueError, match="another kind"):
        index.restore(WORKER, RadixDump(1, False, False, [], {}, True))


def test_operations_that_do_not_fit_are_told() -> None:
    index = Index()
    index.add(WORKER, WorkerSpec("m", EngineKind.VLLM))
    assert not index.redo(WORKER, [("R", 0, 0, [1])])
    assert not index.redo(WORKER, [("nonsense",)])


def test_a_dump_with_a_run_below_a_page_that_only_another_worker_holds_is_not_whole() -> None:
    """After a restore it would wait for that page."""
    index = Index()
    for worker, hashes, parent, tokens in ((OTHER, [1, 2], None, [5, 6, 7, 8]), (WORKER, [3], 2, [9, 9])):
        index.add(worker, WorkerSpec("m", EngineKind.SGLANG))
        index.apply(worker, EventBatch(1.0, [stored([0], None, [4, 4]), stored(hashes, parent, tokens)], 0))
    assert index.parked(WORKER) == 0
    for worker, whole in ((OTHER, True), (WORKER, False)):
        dump = index.dump(worker)
        assert isinstance(dump, RadixDump)
        assert dump.whole is whole


def stored(hashes: Sequence[EngineHash], parent: EngineHash | None, tokens: list[int]) -> BlockStored:
    return BlockStored(list(hashes), parent, array("I", tokens).tobytes(), 2)
