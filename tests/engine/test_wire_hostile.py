"""A payload gives a batch or a `WireError`, and a bad event costs only itself, whatever the bytes are."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.wire import MAX_GROUP, WireError, decode
from index.event import BlockRemoved, BlockStored, KVEvent
from index.worker import EngineKind, Medium
from tests.engine.wire_samples import CLEARED, REMOVED, STORED, events_of

pack = msgspec.msgpack.encode

SCALAR = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=70)
    | st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "GPU", "REMOTE"])
)
KEY = st.sampled_from([*STORED, "locality", "cache_salt", "ts", "events", "data_parallel_rank"]) | st.text(max_size=4)
VALUE = st.recursive(SCALAR, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEY, inner, max_size=4))
FLIPS = st.lists(st.tuples(st.integers(0, 2**16), st.integers(1, 255)))
ENGINE = st.sampled_from(EngineKind)
SEEDS = [
    [1.0, [STORED, REMOVED, CLEARED], 0],
    [1.0, [[*STORED.values()], [*REMOVED.values()], ["AllBlocksCleared"]], 0],
    [1.0, [{**STORED, "token_ids": [[1, 2], [2, 3]]}, [*list(STORED.values())[:7], {"cache_salt": "s"}]]],
    {"ts": 1, "events": [STORED, CLEARED], "data_parallel_rank": None},
]


def assert_safe(payload: bytes, engine: EngineKind) -> None:
    """A `WireError`, or a batch whose values are all within what `index.event` promises."""
    try:
        batch = decode(payload, engine)
    except WireError:
        return
    assert type(batch.ts) is float
    assert batch.dp_rank is None or type(batch.dp_rank) is int
    for event in batch.events:
        assert_well_formed(event, engine)


def assert_well_formed(event: KVEvent, engine: EngineKind) -> None:
    if isinstance(event, BlockStored | BlockRemoved):
        assert all(is_hash(value) for value in event.block_hashes)
        assert type(event.medium) is Medium
        assert type(event.group) is int
        assert 0 <= event.group <= MAX_GROUP
    if isinstance(event, BlockStored):
        assert event.parent is None or is_hash(event.parent)
        assert type(event.tokens) is bytes
        assert len(event.tokens) % (8 if event.bigrams else 4) == 0
        assert 0 < event.block_size <= 2**20 or not (event.block_size or event.tokens)
        for name in (event.lora_name, event.cache_salt, event.kind):
            assert name is None or (type(name) is str and name)
        assert engine is EngineKind.SGLANG or (event.cache_salt is None and not event.bigrams)
        for keys in event.extra_keys or []:
            hash(keys)


def is_hash(value: object) -> bool:
    return (type(value) is int and -(2**63) <= value < 2**64) or (type(value) is bytes and 1 <= len(value) <= 64)


@settings(deadline=None)
@given(st.binary(max_size=200), ENGINE)
def test_any_bytes_are_safe(payload: bytes, engine: EngineKind) -> None:
    assert_safe(payload, engine)


@settings(deadline=None)
@given(
    st.sampled_from(SEEDS).map(pack), st.lists(st.tuples(st.integers(0, 2**16), st.integers(1, 255))), st.data(), ENGINE
)
def test_a_good_payload_with_flipped_bits_or_a_cut_is_safe(
    payload: bytes, flips: list[tuple[int, int]], data: st.DataObject, engine: EngineKind
) -> None:
    mutated = bytearray(payload)
    for place, bits in flips:
        mutated[place % len(mutated)] ^= bits
    cut = data.draw(st.integers(0, len(mutated)) | st.just(len(mutated)))
    assert_safe(bytes(mutated[:cut]), engine)


def mutate(value: Any, data: st.DataObject) -> Any:
    """One node somewhere below `value` replaced, left out or doubled."""
    if not isinstance(value, list | dict) or not value or data.draw(st.integers(0, 3)) == 0:
        return data.draw(VALUE)
    items: list[Any] = list(value.items()) if isinstance(value, dict) else list(value)
    place = data.draw(st.integers(0, len(items) - 1))
    match data.draw(st.sampled_from(["out", "double", "below", "below", "below"])):
        case "out":
            del items[place]
        case "double" if isinstance(value, list):
            items.insert(place, items[place])
        case _ if isinstance(value, dict):
            items[place] = (items[place][0], mutate(items[place][1], data))
        case _:
            items[place] = mutate(items[place], data)
    return dict(items) if isinstance(value, dict) else items


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(SEEDS), st.integers(1, 4), st.data(), ENGINE)
def test_a_good_payload_with_another_structure_is_safe(
    batch: Any, times: int, data: st.DataObject, engine: EngineKind
) -> None:
    for _ in range(times):
        batch = mutate(batch, data)
    assert_safe(pack(batch), engine)


@settings(deadline=None)
@given(st.lists(VALUE, min_size=1, max_size=4), st.sampled_from(SEEDS[:2]), st.data())
def test_bad_events_cost_only_themselves(bad: list[Any], batch: Any, data: st.DataObject) -> None:
    good = list(zip(batch[1], events_of(*batch[1]), strict=True))
    mixed = data.draw(st.permutations([*good, *((event, None) for event in bad)]))
    answer = events_of(*(event for event, _ in mixed))
    assert [got for got, (_, wanted) in zip(answer, mixed, strict=True) if wanted] == [w for _, w in mixed if w]
