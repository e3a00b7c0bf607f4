"""The lookup of hybrid models against what it promises: the longest prefix that every group can continue."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from index.group_rules import GroupSpec, reusable_tokens

UNIT = 4
PROMPT = 60


def full(group: int, size: int) -> GroupSpec:
    return GroupSpec(group, "full_attention", size, None)


def window(group: int, size: int, tokens: int) -> GroupSpec:
    return GroupSpec(group, "sliding_window", size, tokens)


def mamba(group: int, size: int) -> GroupSpec:
    return GroupSpec(group, "mamba", size, None)


sizes = st.sampled_from([UNIT, 2 * UNIT, 4 * UNIT])
kinds = st.one_of(
    st.builds(full, st.just(0), sizes),
    st.builds(window, st.just(0), sizes, st.integers(1, 30)),
    st.builds(mamba, st.just(0), sizes),
)
layouts = st.lists(kinds, min_size=1, max_size=3).map(
    lambda specs: [spec._replace(group=number) for number, spec in enumerate(specs)]
)
holdings = st.sets(st.tuples(st.integers(0, 2), st.integers(1, PROMPT // UNIT).map(lambda end: end * UNIT)))


def continues(spec: GroupSpec, held: set[tuple[int, int]], length: int) -> bool:
    """Whether a group has what the tokens after `length` attend to, by whole blocks."""
    if length == 0:
        return True
    if length % spec.block_size:
        return False
    ends = range(spec.block_size, length + 1, spec.block_size)
    if spec.is_mamba:
        ends = ends[-1:]
    elif spec.is_window:
        blocks = -(-(max(spec.window or 1, 1) - 1) // spec.block_size)
        ends = ends[-blocks:] if blocks else ends[-1:]
    return all((spec.group, end) in held for end in ends)


def fine(specs: list[GroupSpec], unit: int) -> bool:
    return any(spec.is_mamba and spec.block_size > unit for spec in specs)


@given(layouts, holdings, st.integers(1, PROMPT))
def test_the_hit_can_be_continued_by_every_group_and_is_below_the_prompt(
    specs: list[GroupSpec], held: set[tuple[int, int]], tokens: int
) -> None:
    unit = math.gcd(*(spec.block_size for spec in specs))
    hit = reusable_tokens(specs, lambda group, end: (group, end) in held, tokens, None, eagle=False)
    assert 0 <= hit < tokens
    if fine(specs, unit):
        assert hit % unit == 0
        return
    assert hit % math.lcm(*(spec.block_size for spec in specs)) == 0
    assert all(continues(spec, held, hit) for spec in specs)


@given(layouts, holdings, st.integers(1, PROMPT))
def test_of_equal_blocks_the_hit_is_the_longest_that_can_be_continued(
    specs: list[GroupSpec], held: set[tuple[int, int]], tokens: int
) -> None:
    specs = [spec._replace(block_size=UNIT) for spec in specs]
    hit = reusable_tokens(specs, lambda group, end: (group, end) in held, tokens, None, eagle=False)
    longest = max(length for length in range(0, tokens, UNIT) if all(continues(spec, held, length) for spec in specs))
    assert hit == longest


@given(layouts, holdings, st.integers(1, PROMPT))
def test_eagle_never_reuses_more(specs: list[GroupSpec], held: set[tuple[int, int]], tokens: int) -> None:
    def has(group: int, end: int) -> bool:
        return (group, end) in held

    with_drop = reusable_tokens(specs, has, tokens, None, eagle=True)
    assert 0 <= with_drop <= reusable_tokens(specs, has, tokens, None, eagle=False)


def test_a_partial_entry_extends_the_last_whole_block() -> None:
    specs = [full(0, 16), mamba(1, 16)]
    held = {(0, 16), (0, 24), (1, 24), (1, 16)}
    assert reusable_tokens(specs, lambda group, end: (group, end) in held, 30, 8, eagle=False) == 24
    assert reusable_tokens(specs, lambda group, end: (group, end) in held, 24, 8, eagle=False) == 16
    assert reusable_tokens(specs, lambda group, end: (group, end) in held, 30, 8, eagle=True) == 16


def test_a_window_that_needs_whole_blocks_rules_out_partial_entries() -> None:
    specs = [full(0, 16), mamba(1, 16), window(2, 16, 8)]
    held = {(0, 16), (0, 24), (1, 16), (1, 24), (2, 16)}
    assert reusable_tokens(specs, lambda group, end: (group, end) in held, 30, 8, eagle=False) == 16


def test_an_unknown_kind_counts_as_full_attention() -> None:
    specs = [GroupSpec(0, "chunked_local_attention", 4, None)]
    held = {(0, 4), (0, 12)}
    assert reusable_tokens(specs, lambda group, end: (group, end) in held, 30, None, eagle=False) == 4


def test_a_declared_unit_that_does_not_divide_the_blocks_is_set_aside() -> None:
    assert reusable_tokens([full(0, 16), mamba(1, 16)], lambda _group, _end: True, 33, 12, eagle=False) == 32
