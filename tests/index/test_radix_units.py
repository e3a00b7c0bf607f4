"""Units of SGLang's cache: bigrams, and what of a match is reused."""

from __future__ import annotations

from array import array
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.radix_units import bigrams, reusable_units


@given(st.lists(st.integers(0, 2**32 - 1), max_size=30))
def test_bigrams_pair_each_token_with_the_next(tokens: list[int]) -> None:
    pairs = [half for pair in pairwise(tokens) for half in pair]
    assert bigrams(array("I", tokens).tobytes()) == array("I", pairs).tobytes()


@pytest.mark.parametrize(
    ("matched", "prompt_tokens", "page_size", "eagle", "expected"),
    [
        (96, 96, 16, False, 80),
        (96, 97, 16, False, 96),
        (96, 97, 1, False, 96),
        (96, 96, 1, False, 95),
        (80, 81, 16, True, 64),
        (80, 82, 16, True, 80),
        (4, 5, 1, True, 3),
        (0, 1, 1, True, 0),
        (0, 0, 16, False, 0),
    ],
)
def test_the_engine_computes_the_last_token_and_whole_pages(
    matched: int, prompt_tokens: int, page_size: int, *, eagle: bool, expected: int
) -> None:
    assert reusable_units(matched, prompt_tokens, page_size, eagle=eagle) == expected
