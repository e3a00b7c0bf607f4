"""The last values by id: as an OrderedDict, whatever happens."""

from __future__ import annotations

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from router import recent
from router.recent import Recent

NAMES = st.sampled_from("abcdef")


@given(
    st.lists(st.tuples(st.sampled_from(["add", "pop", "oldest"]), NAMES), max_size=60), st.sampled_from([0, 2, 1024])
)
def test_it_is_an_ordered_dict(deeds: list[tuple[str, str]], most_gone: int) -> None:
    model, kept = OrderedDict[str, int](), Recent[int]()
    before, recent._MOST_GONE = recent._MOST_GONE, most_gone
    try:
        for number, (deed, name) in enumerate(deeds, start=1):
            if deed == "add":
                model[name] = number
                model.move_to_end(name)
                kept.add(name, number)
            elif deed == "pop":
                assert kept.pop(name) == model.pop(name, None)
            else:
                assert kept.oldest() == next(iter(model), None)
            assert (len(kept), kept.get(name), name in kept) == (len(model), model.get(name), name in model)
        order = []
        while (oldest := kept.oldest()) is not None:
            order.append((oldest, kept.pop(oldest)))
        assert order == list(model.items())
    finally:
        recent._MOST_GONE = before


def test_what_was_taken_away_is_not_kept() -> None:
    kept = Recent[int]()
    for number in range(10_000):
        kept.add(str(number), number)
        assert kept.pop(str(number)) == number
    assert len(kept._order) <= 1026
