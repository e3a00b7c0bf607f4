"""The two cores' block hashes against each other: any parent, any tokens, every algorithm, byte for byte."""

from __future__ import annotations

import hashlib
import pickle
import random
from array import array
from types import ModuleType

import cbor2
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from index import native
from index.block_hash import ALGORITHMS, block_hash, digest_size, run_digests
from tests.support.cores import native_module, need_native

pytestmark = need_native

EDGES = [0, 1, 23, 24, 127, 128, 255, 256, 65_535, 65_536, 2**31 - 1, 2**31, 2**32 - 1]
MOST_TOKENS = 8192
algorithms = st.sampled_from(ALGORITHMS)
parents = st.binary(max_size=64)
token_ids = st.sampled_from(EDGES) | st.integers(0, 2**32 - 1)


@pytest.fixture(scope="module")
def built() -> ModuleType:
    return native_module()


def by_python(algorithm: str, parent: bytes, tokens: list[int]) -> bytes:
    """Written down a second time, from vLLM's own words: serialise the tuple, then digest it."""
    value = (parent, tuple(tokens), None)
    data = cbor2.dumps(value, canonical=True) if algorithm.endswith("_cbor") else pickle.dumps(value, protocol=5)
    return hashlib.sha256(data).digest() if algorithm.startswith("sha256") else xxhash.xxh3_128_digest(data)


def packed(tokens: list[int]) -> bytes:
    return array("I", tokens).tobytes()


@settings(max_examples=400, deadline=None)
@given(algorithms, parents, st.lists(token_ids, max_size=40))
def test_any_block_has_the_digest_of_python(
    built: ModuleType, algorithm: str, parent: bytes, tokens: list[int]
) -> None:
    assert built.block_digest(algorithm, parent, packed(tokens)) == by_python(algorithm, parent, tokens)


@settings(max_examples=60, deadline=None)
@given(algorithms, parents, st.integers(0, 5000) | st.sampled_from([255, 256, 257, 4095, 4096]), st.integers(0, 2**32))
def test_long_blocks_have_it_too(built: ModuleType, algorithm: str, parent: bytes, size: int, seed: int) -> None:
    dice = random.Random(seed)
    tokens = [dice.getrandbits(dice.choice([4, 8, 16, 31, 32])) for _ in range(size)]
    assert built.block_digest(algorithm, parent, packed(tokens)) == by_python(algorithm, parent, tokens)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 16, 23, 24, MOST_TOKENS])
@pytest.mark.parametrize("token", EDGES)
def test_every_form_of_a_number_and_of_a_tuple(built: ModuleType, algorithm: str, size: int, token: int) -> None:
    parent, tokens = bytes(range(digest_size(algorithm))), [token] * size
    assert built.block_digest(algorithm, parent, packed(tokens)) == by_python(algorithm, parent, tokens)


@settings(max_examples=200, deadline=None)
@given(algorithms, parents, st.lists(token_ids, max_size=60), st.integers(1, 20))
def test_a_run_is_the_chain_of_its_blocks(
    built: ModuleType, algorithm: str, parent: bytes, tokens: list[int], size: int
) -> None:
    expected: list[bytes] = []
    for start in range(0, len(tokens) // size * size, size):
        expected.append(by_python(algorithm, expected[-1] if expected else parent, tokens[start : start + size]))
    assert built.block_digests(algorithm, parent, packed(tokens), size) == b"".join(expected)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("parent", "size"), [(bytes(65), 4), (bytes(300), 4), (bytes(32), MOST_TOKENS + 1)])
def test_what_only_python_hashes_is_hashed_by_it(
    built: ModuleType, monkeypatch: pytest.MonkeyPatch, algorithm: str, parent: bytes, size: int
) -> None:
    monkeypatch.setattr(native, "CORE", native.chosen("native"))
    tokens = [2**32 - 1 - number for number in range(size)]
    assert built.block_digest(algorithm, parent, packed(tokens)) is None
    assert built.block_digests(algorithm, parent, packed(tokens), size) is None
    assert block_hash(algorithm, parent, tokens, None) == by_python(algorithm, parent, tokens)
    assert run_digests(algorithm, parent, packed(tokens), size) == [by_python(algorithm, parent, tokens)]


def test_what_cannot_be_is_refused(built: ModuleType) -> None:
    with pytest.raises(KeyError, match="md5"):
        built.block_digest("md5", b"", b"")
    with pytest.raises(KeyError, match="md5"):
        built.block_digests("md5", b"", b"", 16)
    with pytest.raises(ValueError, match="4 bytes"):
        built.block_digest("sha256", b"", b"abc")
    with pytest.raises(ValueError, match="block_size"):
        built.block_digests("sha256", b"", b"", 0)
