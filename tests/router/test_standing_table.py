"""The rows of standing candidates: the same in both cores, to the last bit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.assignment_book import new_book
from router.load_guard import Told
from router.settings import RouterSettings
from router.standing_table import standing_table
from tests.support.cores import native_module, need_native

SETTINGS = RouterSettings(load_window_s=10.0, load_stale_s=4.0, assignment_ttl_s=30.0, prefill_ttl_s=7.0)
NUMBERS = st.sampled_from([0.0, 0.25, 1 / 3, 1.0, 1.0, 2.0, 1e300]) | st.floats(0, 100)
UNREPORTED = Told(None, None, 1.0)


def told(requests: float | None, weight: float = 1.0) -> Told:
    return Told(requests, None, weight)


class Rows:
    """A table and the books of its places, in one core."""

    def __init__(self, count: int, core: ModuleType | None, settings: RouterSettings = SETTINGS) -> None:
        self.table: Any = standing_table(count, settings, core)
        self.books: list[Any] = [None] * count
        self._settings, self._core = settings, core

    def add(self, place: int, at: float, cost: float = 0.0, prefill: int = 0, one: float = 1.0) -> int:
        """A request is assigned to a place."""
        if self.books[place] is None:
            self.books[place] = new_book(self._settings, self._core)
        number: int = self.books[place].add(at, cost, prefill, one)
        return number

    def look(self, now: float, places: Iterable[int] | None = None, *, ends_reported: bool = False) -> float:
        """Look at some places, or at all."""
        some = range(len(self.books)) if places is None else places
        until: float = self.table.look({place: self.books[place] for place in some}, now, ends_reported)
        return until


def test_the_least_loaded_is_due_then_the_least_used_then_the_longest_idle(core: ModuleType | None) -> None:
    rows = Rows(5, core)
    for place, requests in enumerate((2, 1, 1, 1, 1)):
        rows.table.tell(place, told(requests))
    for place, at, one in ((1, 4.0, 3.0), (2, 4.0, 2.0), (3, 2.0, 1.0), (4, 3.0, 1.0)):
        rows.add(place, at, one=one)
    rows.look(5.0)
    assert rows.table.due(None, 5.0, 1e9) == [3]
    assert rows.table.due([0, 1, 2], 5.0, 1e9) == [2]
    assert rows.table.due([0], 5.0, 1e9) == [0]
    rows.table.tell(0, told(0.5))
    rows.look(5.0, [0])
    assert rows.table.due(None, 5.0, 1e9) == [0]
    assert rows.table.ranks() == [0.5, 1, 1, 1, 1]


def test_equals_are_all_due(core: ModuleType | None) -> None:
    rows = Rows(3, core)
    rows.look(5.0)
    assert rows.table.due(None, 5.0, 10.0) == [0, 1, 2]
    assert rows.table.due([2, 0], 5.0, 10.0) == [2, 0]


def test_rows_are_over_at_their_time(core: ModuleType | None) -> None:
    rows = Rows(3, core)
    assert rows.table.over(-1e9) == [0, 1, 2]  # nobody has looked
    rows.add(0, 1.0)
    rows.add(2, 3.0)
    assert rows.look(3.0) == pytest.approx(8.0)  # the first one's prefill
    assert [rows.table.over(now) for now in (7.9, 8.1, 10.1)] == [[], [0], [0, 2]]


def test_without_some_reports_the_average_counts(core: ModuleType | None) -> None:
    rows = Rows(3, core)
    rows.table.tell(0, told(2.0))
    rows.table.tell(1, told(4.0))
    rows.look(5.0)
    assert rows.table.ranks() == [2.0, 4.0, 3.0]
    rows.table.tell(1, UNREPORTED)
    rows.look(5.0, [1])
    assert rows.table.ranks() == [2.0, 2.0, 2.0]
    rows.table.tell(0, UNREPORTED)
    rows.add(2, 5.0, cost=0.5)
    rows.look(5.0, [0, 2])
    assert rows.table.ranks() == [0.0, 0.0, 0.5]


def test_a_place_that_is_not_there_is_refused(core: ModuleType | None) -> None:
    with pytest.raises(IndexError):
        standing_table(3, SETTINGS, core).due([3], 0.0, 1.0)


def test_whose_queue_outweighs_its_prefix_is_held_until_the_next_request(core: ModuleType | None) -> None:
    rows = Rows(3, core)
    rows.add(0, 0.0, prefill=1000)
    rows.look(4.0)
    table = rows.table
    table.weigh({0: 100}, 50, 0.5)
    assert [table.held(place) for place in range(3)] == [True, False, False]
    assert table.due(None, 0.0, 1.0) == [1, 2]
    assert table.due([0], 0.0, 1.0) == [0]
    table.weigh({0: 900}, 50, 0.5)
    assert not table.held(0)
    table.weigh({0: 100}, 50, 0.5)
    table.unweigh()
    assert not table.held(0)


def test_a_known_load_over_the_limit_is_held(core: ModuleType | None) -> None:
    rows = Rows(2, core, replace(SETTINGS, guard_floor_requests=8.0, guard_multiple=3.0))
    for requests, least, held in ((9.0, 0.0, True), (8.0, 0.0, False), (9.0, 2.0, False), (9.1, 2.0, True)):
        rows.table.tell(0, told(requests))
        rows.table.tell(1, told(least))
        rows.look(5.0)
        assert [rows.table.held(0), rows.table.held(1)] == [held, False]


TOLD = st.builds(Told, st.none() | NUMBERS, st.none() | st.floats(80, 100), st.sampled_from([1e-6, 0.3, 1.0, 1.0, 2.5]))
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "end", "end_prefill", "tell", "look", "due", "weigh"]),
        st.floats(0, 12),
        st.integers(0, 2),
        st.integers(0, 9),
        TOLD,
    ),
    max_size=40,
)


def test_a_row_follows_what_is_told_and_assigned(core: ModuleType | None) -> None:
    rows = Rows(1, core)
    rows.table.tell(0, Told(3.0, 99.0, 2.0))
    assert rows.look(100.0) == pytest.approx(103.0)
    assert rows.table.ranks() == [1.5]
    rows.add(0, 100.0, cost=0.5, prefill=800, one=0.5)
    assert rows.look(100.0, ends_reported=True) == pytest.approx(103.0)
    assert rows.table.ranks() == [1.75]
    assert rows.look(104.0, ends_reported=True) == pytest.approx(107.0)
    assert rows.table.ranks() == [0.5]


@need_native
@given(STEPS)
def test_both_cores_say_the_same(steps: list[tuple[str, float, int, int, Told]]) -> None:
    both = [Rows(3, core) for core in (None, native_module())]
    now, added = 90.0, [0, 0, 0]
    for rows in both:
        rows.look(now)
    for what, later, place, number, new in steps:
        now += later
        if what == "add":
            assert len({rows.add(place, now, number / 8, number * 100) for rows in both}) == 1
            added[place] += 1
        elif what == "tell":
            for rows in both:
                rows.table.tell(place, new)
        elif what == "look":
            places = [number % 3, place]
            assert len({rows.look(now, places, ends_reported=new.weight < 1) for rows in both}) == 1
        elif what == "due":
            for some in (None, [place], [number % 3, place] if number % 3 != place else None):
                python, native = (rows.table.due(some, now, 7.0) for rows in both)
                assert python == native
        elif what == "weigh":
            for rows in both:
                rows.table.weigh({place: number * 20}, 10 * number, new.weight)
        elif number < added[place]:
            assert len({getattr(rows.books[place], what)(number) for rows in both}) == 1
        python, native = (
            (rows.table.ranks(), rows.table.over(now), [rows.table.held(one) for one in range(3)]) for rows in both
        )
        assert python == native


@need_native
def test_what_is_told_wrongly_is_refused() -> None:
    table: Any = standing_table(1, SETTINGS, native_module())
    for place, wrong in ((1, (1.0, 1.0, 1.0)), (0, (1.0, 1.0)), (0, ("x", 1.0, 1.0))):
        with pytest.raises((IndexError, ValueError, RuntimeError, TypeError)):
            table.tell(place, wrong)
    for books in ({1: None}, {0: None, 7: None}, {-1: None}, {0: "x"}, {"x": None}):
        with pytest.raises((IndexError, RuntimeError, TypeError)):
            table.look(books, 0.0, False)
