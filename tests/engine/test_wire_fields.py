"""Every field of an event: what it accepts, what it means, what makes the event malformed."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.wire_fields import (
    FieldError,
    block_hash,
    block_hashes,
    block_size,
    count,
    extra_keys,
    is_remote,
    lora_name,
    medium,
    text,
    token_bytes,
)
from index.worker import Medium

U32 = st.integers(0, 2**32 - 1)
HASH = st.integers(-(2**63), 2**64 - 1) | st.binary(min_size=1, max_size=64)
NOT_AN_INTEGER = [True, False, 1.0, "1", b"1", [], {}, [1]]


def reason(value: Any, field: Any) -> str:
    with pytest.raises(FieldError) as caught:
        field(value)
    return caught.value.reason


@given(st.lists(HASH, max_size=40))
def test_hashes_are_kept_as_they_are(hashes: list[int | bytes]) -> None:
    assert block_hashes(hashes) == hashes


@given(
    st.lists(HASH, max_size=8), st.sampled_from([True, 1.0, "abc", "YWJj", b"", bytes(65), None, [1], {}]), st.data()
)
def test_one_wrong_hash_anywhere_makes_the_list_malformed(hashes: list[Any], wrong: Any, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(hashes)))
    assert reason([*hashes[:place], wrong, *hashes[place:]], block_hashes) == "malformed"


@pytest.mark.parametrize("value", [None, 1, "abc", b"abc", {}, {"a": 1}])
def test_hashes_must_be_a_list(value: Any) -> None:
    assert reason(value, block_hashes) == "malformed"


@pytest.mark.parametrize("value", [None, True, 1.0, "1", b"", bytes(65), [1]])
def test_a_parent_is_an_integer_or_1_to_64_bytes(value: Any) -> None:
    assert reason(value, block_hash) == "malformed"


@given(st.lists(U32, max_size=100))
def test_tokens_are_little_endian_u32(ids: list[int]) -> None:
    assert token_bytes(ids) == (struct.pack(f"<{len(ids)}I", *ids), False)


@given(st.lists(st.tuples(U32, U32).map(list), min_size=1, max_size=50))
def test_pairs_are_8_bytes_a_unit(pairs: list[list[int]]) -> None:
    flat = [half for pair in pairs for half in pair]
    assert token_bytes(pairs) == (struct.pack(f"<{len(flat)}I", *flat), True)


@given(st.lists(U32, max_size=20), st.integers(max_value=-1) | st.integers(min_value=2**32), st.booleans(), st.data())
def test_a_token_outside_u32_has_its_own_reason(ids: list[int], wrong: int, pairs: bool, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(ids)))
    tokens: list[Any] = [*ids[:place], wrong, *ids[place:]]
    assert reason([[7, token] for token in tokens] if pairs else tokens, token_bytes) == "token_range"


@settings(deadline=None)
@given(st.lists(U32, max_size=20), st.sampled_from([True, False, 1.0, "1", b"1", None, [1, 2], {}]), st.data())
def test_one_wrong_token_anywhere_is_malformed(ids: list[int], wrong: Any, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(ids)))
    tokens = [*ids[:place], wrong, *ids[place:]]
    if len(tokens) > 1 or wrong != [1, 2]:
        assert reason(tokens, token_bytes) == "malformed"
    assert reason([[token, 7] for token in tokens], token_bytes) == "malformed"


@pytest.mark.parametrize("wrong", [[], [1], [1, 2, 3], 1, None, "ab", b"ab", {1: 1, 2: 2}])
def test_a_unit_that_is_no_pair_is_malformed(wrong: Any) -> None:
    assert reason([[1, 2], wrong, [3, 4]], token_bytes) == "malformed"
    assert reason([[1, 2], wrong], token_bytes) == "malformed"


@pytest.mark.parametrize("value", [None, 1, "abc", b"abcd", {}])
def test_tokens_must_be_a_list(value: Any) -> None:
    assert reason(value, token_bytes) == "malformed"


@pytest.mark.parametrize("value", [0, 1, 2**20])
def test_a_block_size_can_be_0_to_2_to_the_20(value: int) -> None:
    assert block_size(value) == value


@pytest.mark.parametrize("value", [None, -1, 2**20 + 1, *NOT_AN_INTEGER])
def test_a_block_size_outside_its_bounds_or_missing_is_malformed(value: Any) -> None:
    assert reason(value, block_size) == "malformed"


def test_a_count_can_be_missing_and_is_bounded() -> None:
    assert [count(value, 3) for value in (None, 0, 3)] == [None, 0, 3]
    for wrong in (-1, 4, *NOT_AN_INTEGER):
        assert reason(wrong, lambda value: count(value, 3)) == "malformed"


def test_nil_and_the_empty_string_are_no_text() -> None:
    assert [text(value) for value in (None, "", "a")] == [None, None, "a"]
    wrong: Any
    for wrong in (0, False, b"", b"a", []):
        assert reason(wrong, text) == "malformed"


@pytest.mark.parametrize(
    ("name", "number", "known"),
    [
        (None, None, None),
        ("", None, None),
        (None, 0, None),
        ("sql", None, "sql"),
        ("sql", 3, "sql"),
        (None, 3, "lora_id=3"),
        ("", 3, "lora_id=3"),
    ],
)
def test_an_adapter_known_only_by_its_number_is_not_the_base_model(name: Any, number: Any, known: str | None) -> None:
    assert lora_name(name, number) == known


@pytest.mark.parametrize(
    ("name", "number"), [(1, None), (b"sql", None), (None, False), (None, True), (None, "3"), (None, 0.0)]
)
def test_a_wrong_adapter_is_malformed(name: Any, number: Any) -> None:
    assert reason(name, lambda value: lora_name(value, number)) == "malformed"


@pytest.mark.parametrize(
    ("names", "tier"),
    [
        ([None, "GPU", "gpu", "gPu"], Medium.GPU),
        (["CPU", "cpu", "CPU_PINNED", "cpu_pinned"], Medium.CPU),
        (["STORAGE", "storage", "DISK", "Disk", "FS", "fs"], Medium.DISK),
        (["EXTERNAL", "HOLOGRAPHIC", "", "GPU ", "GPU0"], Medium.OTHER),
    ],
)
def test_tiers_are_known_by_many_names_and_the_rest_is_other(names: list[str | None], tier: Medium) -> None:
    assert [medium(name) for name in names] == [tier] * len(names)


@pytest.mark.parametrize("value", [0, True, b"GPU", ["GPU"], {}])
def test_a_medium_that_is_no_string_is_malformed(value: Any) -> None:
    assert reason(value, medium) == "malformed"


def test_only_remote_is_remote() -> None:
    assert [is_remote(value) for value in (None, "", "LOCAL", "REMOTE", "remote")] == [False, False, False, True, True]
    wrong: Any
    for wrong in (1, True, b"REMOTE", []):
        assert reason(wrong, is_remote) == "malformed"


def test_extra_keys_keep_names_digests_and_pairs() -> None:
    wire = [["sql", ["img", -6], "salt", b"\xaa" * 32], None, [], [["a", 0], ["b", 2**40]]]
    assert extra_keys(wire) == [("sql", ("img", -6), "salt", b"\xaa" * 32), None, None, (("a", 0), ("b", 2**40))]
    assert extra_keys([None, None]) == [None, None]
    assert extra_keys([]) == []
    assert extra_keys(None) is None


@pytest.mark.parametrize(
    "block",
    [
        "bare",
        b"bare",
        1,
        {},
        [1],
        [True],
        [None],
        [1.0],
        [[]],
        [["img"]],
        [["img", "6"]],
        [["img", True]],
        [["img", 6, 7]],
        [[6, "img"]],
        [[b"img", 6]],
        [{"img": 6}],
    ],
)
def test_extra_keys_that_cannot_be_kept_are_malformed(block: Any) -> None:
    assert reason([block], extra_keys) == "malformed"
    assert reason([None, ["sql"], block], extra_keys) == "malformed"


@pytest.mark.parametrize("value", ["sql", 1, {}, {"a": None}, True])
def test_extra_keys_must_be_a_list(value: Any) -> None:
    assert reason(value, extra_keys) == "malformed"
