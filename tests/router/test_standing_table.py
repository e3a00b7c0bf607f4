"""The rows of standing candidates: the same in both cores, to the last bit."""

from __future__ import annotations

from math import inf
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.assignment_book import new_book
from router.load_guard import Told
from router.settings import RouterSettings
from router.standing_table import Row, standing_table
from tests.support.cores import native_module, need_native

SETTINGS = RouterSettings(load_window_s=10.0, load_stale_s=4.0, assignment_ttl_s=30.0, prefill_ttl_s=7.0)
NUMBERS = st.sampled_from([0.0, 0.25, 1 / 3, 1.0, 1.0, 2.0, 1e300]) | st.floats(0, 100)
TIMES = st.sampled_from([-inf, 0.0, 90.0, 99.9999, 100.0]) | st.floats(0, 100)
ROWS = st.lists(
    st.builds(Row, NUMBERS, NUMBERS, NUMBERS, NUMBERS, TIMES, NUMBERS, TIMES | st.just(inf)), min_size=1, max_size=9
)


def row(rank: float, share: float = 0, last: float = -inf, one: float = 1, until: float = inf) -> Row:
    return Row(rank, 0, 0, share, last, one, until)


def test_the_least_loaded_is_due_then_the_least_used_then_the_longest_idle(core: ModuleType | None) -> None:
    table = standing_table(5, SETTINGS, core)
    for place, one in enumerate([row(2), row(1, 3, 5), row(1, 2, 5), row(1, 0, 3, 2), row(1, 0, 4, 2)]):
        table.put(place, one)
    assert table.due(None, 5.0, 10.0) == [3]
    assert table.due([0, 1, 2], 5.0, 10.0) == [2]
    assert table.due([0], 5.0, 10.0) == [0]
    table.rank(0, 0.5)
    assert table.due(None, 5.0, 10.0) == [0]
    assert table.ranks() == [0.5, 1, 1, 1, 1]


def test_equals_are_all_due(core: ModuleType | None) -> None:
    table = standing_table(3, SETTINGS, core)
    for place in range(3):
        table.put(place, row(1))
    assert table.due(None, 5.0, 10.0) == [0, 1, 2]
    assert table.due([2, 0], 5.0, 10.0) == [2, 0]


def test_rows_are_over_at_their_time(core: ModuleType | None) -> None:
    table = standing_table(3, SETTINGS, core)
    for place, until in enumerate((7.0, inf, 5.0)):
        table.put(place, row(place, until=until))
    assert (table.least_until(), table.least_rank()) == (5.0, 0.0)
    assert [table.over(now) for now in (4.0, 5.0, 7.0)] == [[], [2], [0, 2]]


def test_a_place_that_is_not_there_is_refused(core: ModuleType | None) -> None:
    with pytest.raises(IndexError):
        standing_table(3, SETTINGS, core).due([3], 0.0, 1.0)


def test_whose_queue_outweighs_its_prefix_is_held_until_the_next_request(core: ModuleType | None) -> None:
    table = standing_table(3, SETTINGS, core)
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
    table = standing_table(2, SETTINGS, core)
    table.put(0, row(9)._replace(known=9.0))
    table.limit = 8.0
    assert [table.held(0), table.held(1)] == [True, False]
    table.limit = 9.0
    assert not table.held(0)


@need_native
@given(ROWS, st.floats(0, 1000), NUMBERS, st.data())
def test_both_cores_say_the_same(rows: list[Row], later: float, limit: float, data: st.DataObject) -> None:
    python, native = standing_table(len(rows), SETTINGS, None), standing_table(len(rows), SETTINGS, native_module())
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


TOLD = st.builds(Told, st.none() | NUMBERS, st.none() | st.floats(80, 100), st.sampled_from([1e-6, 0.3, 1.0, 1.0, 2.5]))
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "end", "end_prefill", "tell", "look"]), st.floats(0, 12), st.integers(0, 9), TOLD
    ),
    max_size=30,
)


def look(table: Any, book: Any, now: float, ends_reported: bool = True) -> tuple[Any, ...]:
    """The table's look at its first place, for tables and books of either core."""
    return tuple(table.look(0, book, now, ends_reported))


def test_a_row_follows_what_is_told_and_assigned(core: ModuleType | None) -> None:
    table, book = standing_table(2, SETTINGS, core), new_book(SETTINGS, core)
    table.tell(0, Told(3.0, 99.0, 2.0))
    assert look(table, None, 100.0, ends_reported=False) == (1.5, None, 0.0, 0.0, pytest.approx(103.0))
    book.add(100.0, 0.5, 800, 0.5)
    assert look(table, book, 100.0) == (1.75, 0.5, 0.25, 400.0, pytest.approx(103.0))
    assert table.ranks() == [1.75, 0.0]
    assert table.least_until() == 0.0  # nobody has looked at the second
    assert look(table, book, 104.0) == (None, 0.5, 0.25, 400.0, pytest.approx(107.0))
    assert table.ranks() == [0.5, 0.0]


@need_native
@given(STEPS)
def test_both_cores_look_alike(steps: list[tuple[str, float, int, Told]]) -> None:
    tables = [standing_table(1, SETTINGS, core) for core in (None, native_module())]
    books = [new_book(SETTINGS, core) for core in (None, native_module())]
    now, added = 90.0, 0
    for what, later, number, told in steps:
        now += later
        if what == "add":
            assert books[0].add(now, number / 8, number * 100, 1.0) == books[1].add(now, number / 8, number * 100, 1.0)
            added += 1
        elif what == "tell":
            for table in tables:
                table.tell(0, told)
        elif what == "look":
            ended = told.weight < 1
            seen = [
                look(table, book if number else None, now, ended) for table, book in zip(tables, books, strict=True)
            ]
            assert seen[0] == seen[1]
            for name in ("ranks", "least_rank", "least_until"):
                assert getattr(tables[0], name)() == getattr(tables[1], name)(), name
            for limit in (0.0, 1.0, 3.0):
                tables[0].limit = tables[1].limit = limit
                assert tables[0].held(0) == tables[1].held(0)
        elif number < added:
            assert getattr(books[0], what)(number) == getattr(books[1], what)(number)


def test_what_is_told_wrongly_is_refused() -> None:
    if (core := native_module()) is not None:
        table = standing_table(1, SETTINGS, core)
        for place, told in ((1, (1.0, 1.0, 1.0)), (0, (1.0, 1.0)), (0, ("x", 1.0, 1.0))):
            with pytest.raises((IndexError, ValueError, RuntimeError, TypeError)):
                table.tell(place, told)  # type: ignore[arg-type]
        with pytest.raises(IndexError):
            table.look(1, None, 0.0, ends_reported=False)
