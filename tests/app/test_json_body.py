"""Repeated keys: the quick look never misses one that the full parse sees."""

from __future__ import annotations

import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from app.json_body import decode_json
from app.problems import Problem

ANY = msgspec.json.Decoder()
keys = st.sampled_from(["a", "b", "a:", '"', '":', "\\", "é", "token_ids"])
texts = st.sampled_from(["", "a", '"a":', "\\", "b", ":", "{", "é", "x" * 100])
members = st.recursive(
    st.integers(0, 9).map(str) | texts.map(json.dumps),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")
        | st.lists(st.tuples(keys.map(json.dumps), st.sampled_from([":", " :", " \n\t: "]), inner), max_size=5).map(
            lambda pairs: "{" + ",".join("".join(pair) for pair in pairs) + "}"
        )
    ),
    max_leaves=25,
)


def repeats(text: str) -> bool:
    """The slow and certain answer."""
    found = False

    def look(pairs: list[tuple[str, object]]) -> None:
        nonlocal found
        found = found or len({key for key, _ in pairs}) < len(pairs)

    json.loads(text, object_pairs_hook=look)
    return found


@given(members)
def test_a_body_is_refused_exactly_when_an_object_repeats_a_key(text: str) -> None:
    try:
        decode_json(text.encode(), ANY)
    except Problem as problem:
        refused = "twice" in problem.detail
    else:
        refused = False
    assert refused == repeats(text)


def test_a_repeat_behind_many_strings_is_seen() -> None:
    many = ",".join(f'"k{number}":"v"' for number in range(500))
    assert decode_json(f"{{{many}}}".encode(), ANY)
    try:
        decode_json(f'{{{many},"k0":1}}'.encode(), ANY)
    except Problem as problem:
        field = problem.field
    assert field == "k0"
