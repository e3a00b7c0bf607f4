"""The rows of standing candidates: the same in both cores, to the last bit."""

from __future__ import annotations

from math import inf
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.standing_table import Row, standing_table
from tests.support.cores import native_module, need_native

NUMBERS = st.sampled_from([0.0, 0.25, 1 / 3, 1.0, 1.0, 2.0, 1e300]) | st.floats(0, 100)
TIMES = st.sampled_from([-inf, 0.0, 90.0, 99.9999, 100.0]) | st.floats(0, 100)
ROWS = st.lists(st.tuples(NUMBERS, NUMBERS, TIMES, NUMBERS, TIMES | st.just(inf)), min_size=1, max_size=9)


def test_the_least_loaded_is_due_then_the_least_used_then_the_longest_idle(core: ModuleType | None) -> None:
    table = standing_table(5, core)
    for place, row in enumerate(
        [(2.0, 0, -inf, 1, inf), (1, 3, 5, 1, inf), (1, 2, 5, 1, inf), (1, 0, 3, 2, inf), (1, 0, 4, 2, inf)]
    ):
        table.put(place, row)
    assert table.due(None, 5.0, 10.0) == [3]
    assert table.due([0, 1, 2], 5.0, 10.0) == [2]
    assert table.due([0], 5.0, 10.0) == [0]
    table.rank(0, 0.5)
    assert table.due(None, 5.0, 10.0) == [0]
    assert table.ranks() == [0.5, 1, 1, 1, 1]


def test_equals_are_all_due(core: ModuleType | None) -> None:
    table = standing_table(3, core)
    for place in range(3):
        table.put(place, (1.0, 0.0, -inf, 1.0, inf))
    assert table.due(None, 5.0, 10.0) == [0, 1, 2]
    assert table.due([2, 0], 5.0, 10.0) == [2, 0]


def test_rows_are_over_at_their_time(core: ModuleType | None) -> None:
    table = standing_table(3, core)
    for place, until in enumerate((7.0, inf, 5.0)):
        table.put(place, (place, 0.0, -inf, 1.0, until))
    assert (table.least_until(), table.least_rank()) == (5.0, 0.0)
    assert [table.over(now) for now in (4.0, 5.0, 7.0)] == [[], [2], [0, 2]]


def test_a_place_that_is_not_there_is_refused(core: ModuleType | None) -> None:
    with pytest.raises(IndexError):
        standing_table(3, core).due([3], 0.0, 1.0)


@need_native
@given(ROWS, st.floats(0, 1000), st.data())
def test_both_cores_say_the_same(rows: list[Row], later: float, data: st.DataObject) -> None:
    python, native = standing_table(len(rows), None), standing_table(len(rows), native_module())
    for place, row in enumerate(rows):
        python.put(place, row)
        native.put(place, row)
    now = 100.0 + later
    some = data.draw(st.none() | st.lists(st.sampled_from(range(len(rows))), min_size=1, unique=True))
    assert python.due(some, now, 7.0) == native.due(some, now, 7.0)
    assert python.over(now) == native.over(now)
    assert (python.least_rank(), python.least_until()) == (native.least_rank(), native.least_until())
