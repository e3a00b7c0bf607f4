"""Request keys: equal for equal prefixes in equal namespaces, different for everything else."""

from __future__ import annotations

from array import array
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_digest

from index.event import ExtraKey
from index.prompt import MultimodalItem, Prompt
from index.request_key import extended, items_by_block, prompt_keys, root_key, split_root_extras, strip_lora

names = st.none() | st.text(max_size=3)
Namespace = tuple[str | None, str | None]


def prompt(tokens: list[int], **parts: object) -> Prompt:
    return Prompt(array("I", tokens).tobytes(), **parts)  # type: ignore[arg-type]


@given(st.tuples(names, names), st.tuples(names, names))
def test_namespaces_share_a_root_only_when_equal(one: Namespace, two: Namespace) -> None:
    assert (root_key(*one) == root_key(*two)) == (one == two)


def test_lone_surrogates_are_no_error() -> None:
    assert root_key("\ud800", None) != root_key("\ud801", None)


@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 3), max_size=12), st.integers(1, 4))
def test_keys_agree_exactly_on_the_common_whole_blocks(one: list[int], two: list[int], size: int) -> None:
    a, b = list(prompt_keys(prompt(one), size)), list(prompt_keys(prompt(two), size))
    assert (len(a), len(b)) == (len(one) // size, len(two) // size)
    for depth in range(min(len(a), len(b))):
        assert (a[depth] == b[depth]) == (one[: (depth + 1) * size] == two[: (depth + 1) * size])


items = st.lists(
    st.builds(MultimodalItem, st.sampled_from(["x", "y"]), st.integers(0, 14), st.integers(1, 6)), max_size=3
).map(tuple)


@given(items, st.integers(1, 5))
def test_a_block_lists_the_items_that_overlap_it_by_offset(of: tuple[MultimodalItem, ...], size: int) -> None:
    found = items_by_block(of, 13, size)
    for number in range(13 // size):
        span = range(number * size, (number + 1) * size)
        overlapping = [
            (item.identifier, item.offset - span.start)
            for item in sorted(of, key=lambda item: item.offset)
            if set(range(item.offset, item.offset + item.length)) & set(span)
        ]
        assert list(found.get(number, ())) == overlapping
    assert all(number < 13 // size for number in found)


def test_an_item_changes_the_keys_from_its_first_block_on() -> None:
    plain = list(prompt_keys(prompt([1] * 12), 4))
    seen = list(prompt_keys(prompt([1] * 12, mm_items=(MultimodalItem("x", 5, 2),)), 4))
    assert seen[0] == plain[0]
    assert not set(seen[1:]) & set(plain)
    parent = extended(plain[0], (("x", 1),))
    assert seen[1] == xxh3_64_digest(parent + array("I", [1] * 4).tobytes())


def test_the_order_in_which_a_request_lists_its_items_does_not_matter() -> None:
    one, two = MultimodalItem("x", 0, 2), MultimodalItem("y", 2, 2)
    keys = [list(prompt_keys(prompt([1] * 8, mm_items=of), 4)) for of in ((one, two), (two, one))]
    assert keys[0] == keys[1]


def test_an_item_before_the_block_has_a_negative_offset() -> None:
    assert items_by_block((MultimodalItem("x", 2, 4),), 12, 4) == {
        0: (("x", 2),),
        1: (("x", -2),),
    }


def test_every_kind_of_extra_key_differs() -> None:
    parent = root_key(None, None)
    extras: list[tuple[ExtraKey, ...]] = [
        ("a",),
        (b"a",),
        (("a", 0),),
        (("a", 1),),
        (("a", -1),),
        ("a", "a"),
        ("aa",),
        (b"aa",),
        (),
    ]
    assert all(extended(parent, one) != extended(parent, two) for one, two in combinations(extras, 2))


def test_the_adapter_comes_first_and_another_bare_text_is_the_salt() -> None:
    assert split_root_extras(("a", ("x", 1), "s"), "a") == ("s", (("x", 1),))
    assert split_root_extras(("a", "a"), "a") == ("a", ())
    assert split_root_extras(("s",), "a") == ("s", ())
    assert split_root_extras((b"digest",), None) == (None, (b"digest",))
    assert strip_lora(("a", ("x", 1)), "a") == (("x", 1),)
    assert strip_lora((("x", 1),), "a") == (("x", 1),)
