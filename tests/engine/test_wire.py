"""Batches, events and what is refused, of either engine."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from engine.wire import MAX_GROUP, MAX_WINDOW, WireError, decode, sglang_usable
from index.event import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, SkippedEvent
from index.worker import EngineKind, Medium
from tests.engine.wire_samples import CLEARED, REMOVED, STORED, events_of

VLLM, SGLANG = EngineKind.VLLM, EngineKind.SGLANG
MALFORMED = SkippedEvent("malformed", lossy=True)
UNKNOWN = SkippedEvent("unknown_type", lossy=False)
REMOTE = SkippedEvent("remote", lossy=False)
pack = msgspec.msgpack.encode

# The batch


@pytest.mark.parametrize(
    ("batch", "ts", "rank"),
    [
        ([1.5, []], 1.5, None),
        ([2, [], 3], 2.0, 3),
        ([1.5, [], None, "extra", {}], 1.5, None),
        ({"ts": 1.5, "events": []}, 1.5, None),
        ({"events": [], "ts": 1, "data_parallel_rank": 2, "new": 1}, 1.0, 2),
        ({"ts": 1.5, "events": [], "attn_dp_rank": 4}, 1.5, 4),
    ],
)
@pytest.mark.parametrize("engine", EngineKind)
def test_a_batch_is_a_list_or_a_map(batch: Any, ts: float, rank: int | None, engine: EngineKind) -> None:
    assert decode(pack(batch), engine) == EventBatch(ts, [], rank)


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        (None, "not_a_batch"),
        (7, "not_a_batch"),
        ("batch", "not_a_batch"),
        ([], "not_a_batch"),
        ([1.0], "not_a_batch"),
        ([True, []], "bad_ts"),
        (["1.0", []], "bad_ts"),
        ([None, []], "bad_ts"),
        ([float("nan"), []], "bad_ts"),
        ([float("inf"), []], "bad_ts"),
        ({}, "bad_events"),
        ({"ts": 1.0}, "bad_events"),
        ({1: 1.0, b"events": []}, "bad_events"),
        ([1.0, None], "bad_events"),
        ([1.0, {}], "bad_events"),
        ([1.0, "events", 0], "bad_events"),
        ([1.0, [], True], "bad_rank"),
        ([1.0, [], -1], "bad_rank"),
        ([1.0, [], 0.0], "bad_rank"),
        ([1.0, [], "0"], "bad_rank"),
    ],
)
def test_a_payload_that_is_no_batch_is_refused_whole(batch: Any, reason: str) -> None:
    with pytest.raises(WireError) as caught:
        decode(pack(batch), VLLM)
    assert caught.value.reason == reason


GOOD = pack([1.0, [STORED, REMOVED, CLEARED], 0])


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        GOOD + b"\x00",
        GOOD + GOOD,
        GOOD[:-1],
        b"\xd4\x05\x01",
        b"\xd6\xff\x00\x00\x00\x01",
        b"\xc7\x0c\xff" + b"\xff" * 12,
        b"\x92\x01\x91\x81\xa1\xff\x01",
        b"\x92\x01\x91\x81\x81\x01\x01\x01",
    ],
    ids=["empty", "reserved", "trailing", "two", "cut", "ext", "timestamp", "bad_timestamp", "not_utf8", "map_as_key"],
)
def test_bytes_that_are_no_single_message_are_refused_whole(payload: bytes) -> None:
    with pytest.raises(WireError):
        decode(payload, VLLM)


@pytest.mark.parametrize(
    "bomb",
    [
        b"\x91" * 10_000,
        b"\x91" * 10_000 + b"\xc0",
        b"\x92\x01" + b"\x91" * 100_000 + b"\xc0",
        b"\x81\xa1a" * 10_000 + b"\xc0",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x01",
        b"\x92\x01\xdd\xff\xff\xff\xff" + b"\xc0" * 1000,
        b"\xdd\x7f\xff\xff\xff" * 500,
        b"\xdf\x7f\xff\xff\xff\xa1a" * 500,
    ],
)
def test_bombs_are_refused_at_once(bomb: bytes) -> None:
    start = time.perf_counter()
    with pytest.raises(WireError):
        decode(bomb, SGLANG)
    assert time.perf_counter() - start < 1


# The event


@pytest.mark.parametrize("engine", EngineKind)
def test_both_forms_of_an_event_mean_the_same(engine: EngineKind) -> None:
    stored = {**STORED, "medium": "cpu", "lora_id": 5}
    for fields in range(5, 8):
        positional = list(stored.values())[:fields]
        mapped = dict(list(stored.items())[:fields])
        assert events_of(positional, engine=engine) == events_of(mapped, engine=engine)
    assert events_of(["BlockRemoved", [1], "CPU"], ["AllBlocksCleared"], engine=engine) == [
        BlockRemoved([1], Medium.CPU),
        AllBlocksCleared(),
    ]


def test_the_whole_positional_form_of_vllm_means_the_same_as_the_map() -> None:
    for fields in range(8, len(STORED) + 1):
        (event,) = events_of([*STORED.values()][:fields])
        assert [event] == events_of(dict([*STORED.items()][:fields]))
    assert event == BlockStored(
        block_hashes=[11, 2**64 - 2],
        parent=7,
        tokens=bytes.fromhex("010000000200000003000000ffffffff"),
        block_size=2,
        extra_keys=[("salt", ("img", 1)), None],
        group=1,
        kind="sliding_window",
        window=128,
    )
    assert events_of([*STORED.values(), "future", {}], [*REMOVED.values(), 1.5]) == events_of(STORED, REMOVED)


def test_the_eighth_item_of_sglang_holds_what_is_present_only_when_set() -> None:
    seven = [*STORED.values()][:7]
    (plain,) = events_of(seven, engine=SGLANG)
    assert isinstance(plain, BlockStored)
    assert events_of([*seven, None], [*seven, {}], [*seven, {"cache_salt": ""}], engine=SGLANG) == [plain] * 3
    assert events_of([*seven, {"cache_salt": "s", "block_size": 9}, 1], engine=SGLANG) == [
        plain._replace(cache_salt="s")
    ]
    assert events_of([*seven, "s"], [*seven, {"cache_salt": 1}], engine=SGLANG) == [MALFORMED] * 2


def test_each_engine_has_its_own_optional_fields() -> None:
    event = {**STORED, "cache_salt": "s", "lora_name": "sql"}
    vllm, sglang = (events_of(event, engine=engine)[0] for engine in (VLLM, SGLANG))
    assert isinstance(vllm, BlockStored)
    assert isinstance(sglang, BlockStored)
    assert (vllm.lora_name, vllm.cache_salt, vllm.extra_keys) == ("sql", None, [("salt", ("img", 1)), None])
    assert (sglang.lora_name, sglang.cache_salt, sglang.extra_keys) == ("sql", "s", None)


def test_pairs_are_tokens_of_sglang_only() -> None:
    event = {**STORED, "token_ids": [[1, 2], [2, 3]]}
    (pairs,) = events_of(event, engine=SGLANG)
    assert isinstance(pairs, BlockStored)
    assert (pairs.bigrams, pairs.tokens.hex()) == (True, "01000000020000000200000003000000")
    assert events_of(event, engine=VLLM) == [MALFORMED]


def test_a_remote_block_has_no_effect_even_if_it_is_malformed() -> None:
    assert (
        events_of({**STORED, "locality": "REMOTE"}, {**REMOVED, "locality": "remote", "block_hashes": 1})
        == [REMOTE] * 2
    )


def test_an_unknown_type_is_skipped_and_loses_nothing() -> None:
    assert events_of({"type": "BlockMoved", "block_hashes": 1}, ["BlockMoved"], {"type": ""}) == [UNKNOWN] * 3


@pytest.mark.parametrize(
    "raw",
    [
        None,
        1,
        "BlockStored",
        [],
        {},
        [1],
        [["BlockStored"]],
        {"type": 7},
        {"type": None},
        {"type": []},
        [b"AllBlocksCleared"],
        {b"type": "AllBlocksCleared"},
    ],
)
def test_an_event_without_a_type_is_malformed(raw: Any) -> None:
    assert events_of(raw) == [MALFORMED]


WRONG_FIELDS: list[tuple[str, Any]] = [
    ("block_hashes", None),
    ("block_hashes", [True]),
    ("parent_block_hash", "7"),
    ("parent_block_hash", b""),
    ("token_ids", None),
    ("token_ids", [1, True]),
    ("token_ids", [1.0]),
    ("block_size", None),
    ("block_size", True),
    ("block_size", 0),
    ("block_size", 2**20 + 1),
    ("medium", 1),
    ("lora_name", 1),
    ("lora_id", "x"),
    ("extra_keys", ["bare"]),
    ("group_idx", -1),
    ("group_idx", True),
    ("group_idx", MAX_GROUP + 1),
    ("kv_cache_spec_kind", 123),
    ("kv_cache_spec_sliding_window", "bad"),
    ("kv_cache_spec_sliding_window", MAX_WINDOW + 1),
    ("locality", 1),
]


@pytest.mark.parametrize(("field", "value"), WRONG_FIELDS)
def test_a_known_type_with_a_wrong_field_is_malformed(field: str, value: Any) -> None:
    assert events_of({**STORED, field: value}) == [MALFORMED]
    if field in {*REMOVED, "locality"}:
        assert events_of({**REMOVED, field: value}) == [MALFORMED]


def test_a_field_of_a_messagepack_extension_costs_its_event_only() -> None:
    ext = msgspec.msgpack.Ext(5, b"x")
    wrong, ignored = {**STORED, "parent_block_hash": ext}, {**STORED, "new": ext}
    assert events_of(wrong, ignored, CLEARED) == [MALFORMED, *events_of(STORED), AllBlocksCleared()]


def test_a_store_without_its_block_size_or_tokens_is_malformed() -> None:
    assert events_of(["BlockStored", [500], 499, [1]], ["BlockStored", [500], 499], ["BlockRemoved"]) == [MALFORMED] * 3


# Releases of SGLang


@pytest.mark.parametrize(
    "version", ["0.4.7", "0.5", "0.5.2", "0.5.5", "0.5.5.post3", "v0.5.5", "0.5.5.dev3+gabc", "0.3"]
)
def test_sglang_before_0_5_6_is_refused_with_the_reason(version: str) -> None:
    assert "0.5.6" in (sglang_usable(version) or "")


@pytest.mark.parametrize(
    "version",
    ["0.5.6", "0.5.6.post1", "0.5.6rc1", "0.5.10", "0.5.22.dev1+g1234abc", "0.6", "v0.5.22", "1.0.0", "0.0.0.dev1+gabc",
     "", "main", "unknown", "dev-2026"],
)  # fmt: skip
def test_later_and_unreadable_versions_of_sglang_are_used(version: str) -> None:
    assert sglang_usable(version) is None
