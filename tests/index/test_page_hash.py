"""Page hashes equal the engine's, in both event formats, for tokens and for EAGLE pairs."""

from __future__ import annotations

import json
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.page_hash import lora_id, namespaced, page_hashes, wire_int64

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden" / "sglang" / "hash_vectors.json").read_text())
VECTORS: list[dict[str, Any]] = GOLDEN["vectors"]

salts = st.none() | st.text(st.characters(codec="utf-8"))


def packed(tokens: list[int]) -> bytes:
    return struct.pack(f"<{len(tokens)}I", *tokens)


def paired(tokens: list[int]) -> bytes:
    return b"".join(packed([a, b]) for a, b in pairwise(tokens))


def test_the_vectors_are_all_there() -> None:
    assert len(VECTORS) == 244


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"{v['name']}-{v['page_size']}-{v['format']}-{v['eagle']}")
def test_page_hashes_equal_the_engines(vector: dict[str, Any]) -> None:
    tokens, namespace = GOLDEN["token_lists"][vector["name"]], vector["namespace"]
    units, unit_bytes = (paired(tokens), 8) if vector["eagle"] else (packed(tokens), 4)
    extra_key, salt = namespace.get("extra_key"), namespace.get("cache_salt")
    digests = page_hashes(units, vector["page_size"] * unit_bytes, salt)
    wires = [wire_int64(digest) for digest in digests]
    if vector["format"] == "dynamo":
        wires = [namespaced(wire, extra_key, salt) for wire in wires]
    assert wires == vector["hashes"]
    if "sha256_last" in vector and digests:
        assert digests[-1].hex() == vector["sha256_last"]


def test_the_unnamed_namespace_keeps_the_hash() -> None:
    assert namespaced(-5, None, None) == namespaced(-5, "", "") == -5
    assert len({namespaced(-5, *names) for names in [("ab", "c"), ("a", "bc"), ("abc", None), (None, "abc")]}) == 4


def test_the_id_of_a_start_up_adapter_is_made_of_its_name_and_path() -> None:
    assert lora_id("sql", "/adapters/sql-v1") == "235490ca00bb5ebe821aae430b9728cc"
    assert lora_id("sql", "/adapters/sql-v1") != lora_id("sql", "/adapters/sql-v2")


@given(
    st.binary(max_size=400),
    st.binary(max_size=400),
    st.integers(1, 16),
    salts,
)
def test_a_longer_prompt_begins_with_the_hashes_of_its_prefix(
    prefix: bytes, rest: bytes, page: int, salt: str | None
) -> None:
    page_bytes = 4 * page
    prefix = prefix[: len(prefix) // 4 * 4]
    short, long = page_hashes(prefix, page_bytes, salt), page_hashes(prefix + rest, page_bytes, salt)
    assert long[: len(short)] == short
    assert len(short) == len(prefix) // page_bytes
