"""Names of namespaces, and their labels in stored state."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from index.radix_label import Label, hidden, labelled, named, read_label

WIRES = st.integers(-(1 << 63), (1 << 63) - 1)
SALTS = st.none() | st.text(min_size=1, max_size=6)
LORAS = st.text(min_size=1, max_size=6)


@given(WIRES, SALTS, LORAS, st.booleans())
def test_a_label_is_read_as_it_was_written(wire: int, salt: str | None, lora: str, fixed: bool) -> None:
    assert read_label(labelled(wire, salt, lora, fixed=fixed)) == Label(wire, salt, lora, fixed)
    assert read_label(named(salt, lora)) == Label(None, salt, lora, fixed=False)
    assert read_label(named(salt, None)) == Label(None, salt, None, fixed=False)
    assert read_label(hidden(wire)) == Label(wire, None, None, fixed=False)


def test_names_cannot_be_confused() -> None:
    pairs = [(salt, lora) for salt in (None, "a", "ab", "1:a") for lora in (None, "a", "ab", "b", "1:a")]
    assert len({named(salt, lora) for salt, lora in pairs}) == len(pairs)


def test_what_is_no_label_is_not_read() -> None:
    for text in ("", "x", "=", "=5:a", "=a:b", "?", "?x", "?5=", "?5=9:a", "?5#1:a", "5"):
        assert read_label(text) is None, text
