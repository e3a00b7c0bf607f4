"""The two cores of the block-hash index against each other: the same payloads, the same answers, whatever they hold."""

from __future__ import annotations

import json
from array import array
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.wire import WireError, decode
from index.delta import Delta
from index.dump import BlockDump, unpacked
from index.event import EngineHash, EventBatch
from index.index import Index
from index.native import chosen
from index.pool import WorkerSpec
from index.prompt import Prompt
from index.worker import EngineKind, Worker
from tests.support.cores import need_native
from tests.support.golden import vllm_stream, vllm_streams

pytestmark = need_native

WORKERS = [Worker("a", 0), Worker("b", 0), Worker("c", 0)]
SIZE = 2


def new_index(core: str) -> Index:
    index = Index(chosen(core))
    for number, worker in enumerate(WORKERS):
        index.add(worker, WorkerSpec("m", EngineKind.VLLM, eagle=number == 1))
    return index


def apply_natively(index: Index, worker: Worker, payload: bytes) -> tuple[float, Delta] | None:
    """As app/ingest.py does it; None when the payload is unusable."""
    applied = index.apply_payload(worker, payload, record=True)
    if applied is None:
        return apply_decoded(index, worker, payload)
    if applied.done == applied.events:
        return applied.ts, applied.delta
    return applied.ts, index.apply(worker, decode(payload, EngineKind.VLLM), True, applied)


def apply_decoded(index: Index, worker: Worker, payload: bytes) -> tuple[float, Delta] | None:
    try:
        batch: EventBatch = decode(payload, EngineKind.VLLM)
    except WireError:
        return None
    return batch.ts, index.apply(worker, batch, record=True)


def told(applied: tuple[float, Delta] | None) -> object:
    """An applied payload in a form that can be compared, what was recorded byte for byte."""
    if applied is None:
        return None
    ts, delta = applied
    recorded = None if delta.operations is None else [msgspec.msgpack.encode(one) for one in delta.operations]
    return ts, delta.stored, delta.removed, delta.cleared, delta.orphans, delta.lossy, delta.skipped, recorded


def held(index: Index) -> object:
    found: list[object] = []
    for worker in WORKERS:
        dump = index.dump(worker)
        found += [index.counts(worker), index.block_size(worker), index.parked(worker)]
        if isinstance(dump, BlockDump):
            found.append((dump.block_size, sorted(dump.groups), dump.partial_unit, dump.whole))
            found.append(
                sorted((*slot[:2], *_canonical(slot.hashes, slot.keys), *map(_sorted, slot[4:])) for slot in dump.slots)
            )
    return found


def _canonical(hashes: list[EngineHash], keys: bytes) -> tuple[object, ...]:
    return (_sorted([(block, keys[8 * at : 8 * at + 8]) for at, block in enumerate(hashes)]),)


def _sorted(values: Any) -> list[object]:
    return sorted(values.items() if isinstance(values, dict) else values, key=repr)


def stats(index: Index) -> object:
    return sorted((pool.block_size, pool.workers, pool.blocks, pool.holders) for pool in index.stats())


# Payloads: mostly plain ones over few hashes and tokens, so that histories meet; and all kinds of odd ones.

numbers = st.integers(0, 9) | st.integers(2**63 - 1, 2**63 + 1) | st.integers(-3, -1)
hashes = numbers | st.sampled_from([b"a", b"b" * 32, b"c" * 64, b"\0" * 33])
odd: st.SearchStrategy[object] = (
    st.none() | st.booleans() | st.integers(-2, 70000) | st.floats() | st.text(max_size=3) | st.just([]) | st.just({})
)
media = st.sampled_from([None, "GPU", "gpu", "CPU", "cpu_pinned", "Disk", "", "x\u00e9", "tape"])


@st.composite
def stores(draw: st.DrawFn) -> dict[str, object]:
    count = draw(st.integers(1, 4))
    size = draw(st.sampled_from([SIZE] * 12 + [1, 4, 0]))
    tokens = draw(st.lists(st.integers(0, 1), min_size=count * size, max_size=count * size))
    event: dict[str, object] = {
        "type": "BlockStored",
        "block_hashes": draw(st.lists(hashes, min_size=count, max_size=count)),
        "parent_block_hash": draw(st.none() | hashes),
        "token_ids": tokens,
        "block_size": size,
        "lora_id": None,
        "medium": draw(media),
    }
    further: dict[str, st.SearchStrategy[object]] = {
        "lora_name": st.sampled_from([None, None, "", "sql"]),
        "extra_keys": st.sampled_from(
            [None, [None] * count, [[]] * count, [["sql"], *[None] * (count - 1)], [["x", 1]]]
        ),
        "group_idx": st.sampled_from([0, 0, None, 1]),
        "kv_cache_spec_kind": st.sampled_from([None, "full_attention", "sliding_window", ""]),
        "kv_cache_spec_sliding_window": st.sampled_from([None, 4]),
    }
    for name, values in further.items():
        if not draw(st.integers(0, 4)):
            break  # the positional form has no holes
        event[name] = draw(values) if not draw(st.integers(0, 2)) else None
    return event


paths = st.lists(st.integers(0, 1), min_size=1, max_size=4)


def hash_of(path: list[int]) -> EngineHash:
    """Two of three are numbers; what is negative or bytes takes another way through the native core."""
    number = int("1" + "".join(map(str, path)), 2)
    return (number, number, -number, number, number, b"%d" % number)[number % 6]


@st.composite
def plain_stores(draw: st.DrawFn) -> dict[str, object]:
    """A run of blocks whose hashes follow from their prefix, as an engine with one group sends it."""
    path = draw(paths)
    start = min(draw(st.sampled_from([0, 0, 0, 0, 1, 2])), len(path) - 1)
    return {
        "type": "BlockStored",
        "block_hashes": [hash_of(path[: at + 1]) for at in range(start, len(path))],
        "parent_block_hash": hash_of(path[:start]) if start else None,
        "token_ids": [token for block in path[start:] for token in [block] * SIZE],
        "block_size": SIZE,
        "lora_id": None,
        "medium": draw(st.sampled_from(["GPU", "GPU", "CPU"])),
        "lora_name": None,
        "extra_keys": None,
        "group_idx": 0,
        "kv_cache_spec_kind": draw(st.sampled_from([None, "full_attention"])),
    }


@st.composite
def named_stores(draw: st.DrawFn) -> dict[str, object]:
    """The same blocks as `plain_stores`, under an adapter or a salt: a plain copy in a lower tier may follow."""
    event = draw(plain_stores())
    lora = draw(st.sampled_from([None, "sql"]))
    blocks = event["block_hashes"]
    assert isinstance(blocks, list)
    first = [key for key in (lora, None if lora else "salt") if key is not None and not event["parent_block_hash"]]
    return {**event, "lora_name": lora, "extra_keys": [first or None, *[None] * (len(blocks) - 1)]}


removals: st.SearchStrategy[dict[str, object]] = st.fixed_dictionaries(
    {
        "type": st.just("BlockRemoved"),
        "block_hashes": st.lists(paths.map(hash_of) | hashes, max_size=4),
        "medium": st.sampled_from(["GPU", "GPU", "CPU"]) | media,
    }
)
first = {**dict.fromkeys(["parent_block_hash", "lora_id"]), "type": "BlockStored", "block_size": SIZE, "medium": "GPU"}
FIRST = {**first, "block_hashes": [hash_of([0]), hash_of([0, 0])], "token_ids": [0] * 2 * SIZE}
"""Shows a worker's layout, so that what follows can be plain."""


@st.composite
def events(draw: st.DrawFn) -> object:
    kinds = (
        [plain_stores()] * 9 + [named_stores()] * 2 + [removals] * 4 + [stores(), st.just({"type": "AllBlocksCleared"})]
    )
    event: dict[str, object] = draw(draw(st.sampled_from(kinds)))
    if not draw(st.integers(0, 30)):
        event = {**event, draw(st.sampled_from([*event, "locality", "later"])): draw(odd)}
    if draw(st.booleans()):
        whole = draw(st.integers(0, 7)) > 0
        return list(event.values()) if whole else list(event.values())[: draw(st.integers(1, 9))]
    return event


batches = st.tuples(
    st.sampled_from([1.5, 7, -1]), st.lists(events(), max_size=3), st.sampled_from([0] * 12 + [None, "r"])
)
histories = st.lists(st.tuples(st.integers(0, len(WORKERS) - 1), batches), max_size=14)
prompts = st.lists(st.integers(0, 1), max_size=9).map(lambda tokens: Prompt(array("I", tokens).tobytes()))


@settings(max_examples=400, deadline=None)
@given(histories, st.lists(prompts, min_size=1, max_size=4), st.sampled_from([None, 0, 1, 2]))
def test_any_history_gives_both_cores_the_same_answers(
    history: list[tuple[int, Any]], asked: list[Prompt], removed: int | None
) -> None:
    python, native = new_index("python"), new_index("native")
    history = [*((number, (1.0, [FIRST], 0)) for number in range(2)), *history]
    for number, batch in history:
        payload = msgspec.msgpack.encode(batch)
        expected = told(apply_decoded(python, WORKERS[number], payload))
        assert told(apply_natively(native, WORKERS[number], payload)) == expected
    assert held(native) == held(python)
    assert stats(native) == stats(python)
    for prompt in asked:
        assert native.match("m", prompt, WORKERS) == python.match("m", prompt, WORKERS)
    if removed is not None:
        for index in (python, native):
            index.clear(WORKERS[removed])
        assert held(native) == held(python)


def test_the_histories_take_the_short_way_and_the_long_one() -> None:
    """What the comparison is worth: of the payloads that these strategies make, many go either way, or both."""
    ways: Counter[str] = Counter()

    @settings(max_examples=120, deadline=None, database=None, derandomize=True)
    @given(histories)
    def count(history: list[tuple[int, Any]]) -> None:
        native = new_index("native")
        for number, batch in [(0, (1.0, [FIRST], 0)), *((0, batch) for _, batch in history)]:
            payload = msgspec.msgpack.encode(batch)
            applied = native.apply_payload(WORKERS[number], payload)
            if applied is None:
                ways["long"] += 1
                apply_decoded(native, WORKERS[number], payload)
            elif applied.done < applied.events:
                ways["both"] += 1
                native.apply(WORKERS[number], decode(payload, EngineKind.VLLM), False, applied)
            elif applied.delta.stored or applied.delta.removed:
                ways["short"] += 1

    count()
    assert min(ways["short"], ways["long"], ways["both"]) > 20, ways


def apply_in_runs(index: Index, payloads: list[bytes], size: int, record: bool) -> tuple[list[object], int, int]:
    """As app/ingest.py does it; what was told of each payload, and the stores and removals of those applied in runs."""
    told_of: list[object] = []
    stores = removals = 0
    while payloads:
        run = index.apply_payloads(WORKERS[0], payloads[:size], record)
        stores, removals = stores + run.stores, removals + run.removals
        assert len(run.recorded) == (run.payloads if record else 0)
        told_of += [(ts, [msgspec.msgpack.encode(one) for one in done or ()]) for ts, done in run.recorded]
        payloads = payloads[run.payloads :]
        if run.begun is not None:
            decoded = decode(payloads[0], EngineKind.VLLM)
            delta = index.apply(WORKERS[0], decoded, record, run.begun) if run.begun.done < run.begun.events else None
            told_of.append(told((run.begun.ts, delta or run.begun.delta)))
            payloads = payloads[1:]
        elif not run.payloads:
            told_of.append(told(apply_decoded(index, WORKERS[0], payloads[0])))
            payloads = payloads[1:]
    return told_of, stores, removals


@settings(max_examples=200, deadline=None)
@given(histories, st.integers(1, 7), st.booleans())
def test_payloads_in_runs_have_the_effect_of_each_by_itself(
    history: list[tuple[int, Any]], size: int, record: bool
) -> None:
    single, runs = new_index("native"), new_index("native")
    payloads = [msgspec.msgpack.encode(batch) for batch in [(1.0, [FIRST], 0), *(batch for _, batch in history)]]
    one_by_one: list[object] = []
    stores = removals = 0
    for payload in payloads:
        applied = single.apply_payload(WORKERS[0], payload, record)
        if applied is not None and applied.is_whole:
            stores, removals = stores + applied.stores, removals + applied.removals
            operations = applied.delta.operations or ()
            if record:
                one_by_one.append((applied.ts, [msgspec.msgpack.encode(one) for one in operations]))
        elif applied is None:
            one_by_one.append(told(apply_decoded(single, WORKERS[0], payload)))
        elif applied.done == applied.events:
            one_by_one.append(told((applied.ts, applied.delta)))
        else:
            decoded = decode(payload, EngineKind.VLLM)
            one_by_one.append(told((applied.ts, single.apply(WORKERS[0], decoded, record, applied))))
    assert apply_in_runs(runs, payloads, size, record) == (one_by_one, stores, removals)
    assert held(runs) == held(single)


@pytest.mark.parametrize("name", vllm_streams())
def test_recorded_streams_give_both_cores_the_same(name: str) -> None:
    python, native = new_index("python"), new_index("native")
    for _, payload in sorted(vllm_stream(name).payloads.items()):
        expected = told(apply_decoded(python, WORKERS[0], payload))
        assert told(apply_natively(native, WORKERS[0], payload)) == expected
    assert held(native) == held(python)


def test_a_plain_stream_is_applied_without_decoding() -> None:
    native, short = new_index("native"), 0
    payloads = [payload for _, payload in sorted(vllm_stream("sha256_cbor").payloads.items())]
    for payload in payloads:
        applied = native.apply_payload(WORKERS[0], payload)
        short += applied is not None and applied.done == applied.events
        if applied is None or applied.done < applied.events:
            native.apply(WORKERS[0], decode(payload, EngineKind.VLLM), False, applied)
    assert short > len(payloads) * 0.8


@settings(max_examples=500, deadline=None)
@given(st.data(), st.lists(batches, min_size=1, max_size=3))
def test_damaged_payloads_get_the_verdict_of_the_decoder(data: st.DataObject, plain: list[Any]) -> None:
    python, native = new_index("python"), new_index("native")
    for batch in [(1.0, [FIRST], 0), *plain]:
        raw = bytearray(msgspec.msgpack.encode(batch))
        for _ in range(data.draw(st.integers(0, 3))):
            at = data.draw(st.integers(0, len(raw) - 1))
            raw[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
            if not raw:
                raw = bytearray(b"\xc0")
        payload = bytes(raw)
        expected = told(apply_decoded(python, WORKERS[0], payload))
        assert told(apply_natively(native, WORKERS[0], payload)) == expected
    assert held(native) == held(python)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_change_nothing(payload: bytes) -> None:
    native = new_index("native")
    expected = told(apply_decoded(new_index("python"), WORKERS[0], payload))
    assert told(apply_natively(native, WORKERS[0], payload)) == expected


def test_what_was_recorded_natively_is_the_operation_of_python() -> None:
    python, native = new_index("python"), new_index("native")
    event = {"type": "BlockStored", "block_hashes": [1, 2], "parent_block_hash": None, "token_ids": [5, 6, 7, 8]}
    payload = msgspec.msgpack.encode([1.0, [{**event, "block_size": SIZE, "medium": "GPU"}], 0])
    for index in (python, native):
        index.apply(WORKERS[0], decode(payload, EngineKind.VLLM))
    applied = native.apply_payload(WORKERS[0], payload, record=True)
    assert applied is not None
    assert applied.delta.operations is not None
    delta = python.apply(WORKERS[0], decode(payload, EngineKind.VLLM), record=True)
    assert delta.operations is not None
    assert [json.dumps(unpacked(one), default=bytes.hex) for one in applied.delta.operations] == [
        json.dumps(one, default=bytes.hex) for one in delta.operations
    ]
