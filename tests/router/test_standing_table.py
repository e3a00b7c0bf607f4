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
ROWS = st.lists(
    st.builds(Row, NUMBERS, NUMBERS, NUMBERS, NUMBERS, TIMES, NUMBERS, TIMES | st.just(inf)), min_size=1, max_size=9
)


def row(rank: float, share: float = 0, last: float = -inf, one: float = 1, until: float = inf) -> Row:
    return Row(rank, 0, 0, share, last, one, until)


def test_the_least_loaded_is_due_then_the_least_used_then_the_longest_idle(core: ModuleType | None) -> None:
    table = standing_table(5, core)
    for place, one in enumerate([row(2), row(1, 3, 5), row(1, 2, 5), row(1, 0, 3, 2), row(1, 0, 4, 2)]):
        table.put(place, one)
    assert table.due(None, 5.0, 10.0) == [3]
    assert table.due([0, 1, 2], 5.0, 10.0) == [2]
    assert table.due([0], 5.0, 10.0) == [0]
    table.rank(0, 0.5)
    assert table.due(None, 5.0, 10.0) == [0]
    assert table.ranks() == [0.5, 1, 1, 1, 1]


def test_equals_are_all_due(core: ModuleType | None) -> None:
    table = standing_table(3, core)
    for place in range(3):
        table.put(place, row(1))
    assert table.due(None, 5.0, 10.0) == [0, 1, 2]
    assert table.due([2, 0], 5.0, 10.0) == [2, 0]


def test_rows_are_over_at_their_time(core: ModuleType | None) -> None:
    table = standing_table(3, core)
    for place, until in enumerate((7.0, inf, 5.0)):
        table.put(place, row(place, until=until))
    assert (table.least_until(), table.least_rank()) == (5.0, 0.0)
    assert [table.over(now) for now in (4.0, 5.0, 7.0)] == [[], [2], [0, 2]]


def test_a_place_that_is_not_there_is_refused(core: ModuleType | None) -> None:
    with pytest.raises(IndexError):
        standing_table(3, core).due([3], 0.0, 1.0)


def test_whose_queue_outweighs_its_prefix_is_held_until_the_next_request(core: ModuleType | None) -> None:
    table = standing_table(3, core)
    for place, backlog in enumerate((1000.0, 0.0, 0.0)):
        table.put(place, row(1.0)._replace(backlog=backlog))
    table.weigh({0: 100}, 50, 0.5)
    assert [table.held(place) for place in range(3)] == [True, False, False]
    assert table.due(None, 0.0, 1.0) == [1, 2]
    assert table.due([0], 0.0, 1.0) == [0]
    table.weigh({0: 900}, 50, 0.5)
    assert not table.held(0)
    table.unweigh()
    assert table.due(None, 0.0, 1.0) == [0, 1, 2]


def test_a_known_load_over_the_limit_is_held(core: ModuleType | None) -> None:
    table = standing_table(2, core)
    table.put(0, row(9)._replace(known=9.0))
    table.limit = 8.0
    assert [table.held(0), table.held(1)] == [True, False]
    table.limit = 9.0
    assert not table.held(0)


@need_native
@given(ROWS, st.floats(0, 1000), NUMBERS, st.data())
def test_both_cores_say_the_same(rows: list[Row], later: float, limit: float, data: st.DataObject) -> None:
    python, native = standing_table(len(rows), None), standing_table(len(rows), native_module())
    for place, one in enumerate(rows):
        python.put(place, one)
        native.put(place, one)
    now, places = 100.0 + later, st.sampled_from(range(len(rows)))
    python.limit = native.limit = limit
    some = data.draw(st.lists(places, min_size=1, unique=True))
    if data.draw(st.booleans()):
        saved, tokens = data.draw(st.dictionaries(places, st.integers(0, 200))), data.draw(st.integers(0, 50))
        weight = data.draw(st.sampled_from([0.05, 0.5, 3.0]))
        python.weigh(saved, tokens, weight)
        native.weigh(saved, tokens, weight)
    held = [python.held(place) for place in range(len(rows))]
    assert [native.held(place) for place in range(len(rows))] == held
    assert python.due(some, now, 7.0) == native.due(some, now, 7.0)
    if not all(held):
        assert python.due(None, now, 7.0) == native.due(None, now, 7.0)
    assert python.over(now) == native.over(now)
    assert (python.least_rank(), python.least_until()) == (native.least_rank(), native.least_until())
