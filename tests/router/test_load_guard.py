"""The load guard: a prefix is worth a bounded amount of queue, and only what is known counts against a worker."""

from __future__ import annotations

from math import nan
from random import Random
from types import ModuleType
from typing import Any

import pytest

from router.assignment_book import new_book
from router.assignments import Assignments
from router.candidate import UNKNOWN_LOAD, Candidate
from router.load_guard import Pressure, Told, pressures
from router.route import Router
from router.settings import RouterSettings
from router.standing_table import standing_table
from tests.router.builders import busy, candidate, decide, query, run, worker

HOT = 992


def new_router(settings: RouterSettings | None = None) -> Router:
    return Router(settings or RouterSettings(), Random(7))


def test_a_hot_holder_far_over_the_others_loses_most_requests() -> None:
    candidates = [candidate("a", reusable=HOT, load=busy(64, 40))] + [candidate(name) for name in "bcd"]
    router = new_router()
    decision = decide(router, candidates, query())
    assert decision.reason == "load"
    assert decision.scores[worker("a")] == pytest.approx(HOT / 1000 - 1)
    picks = run(router, candidates, [query()] * 90)
    assert picks == {"b": 30, "c": 30, "d": 30}


def test_with_even_load_the_holder_gets_the_requests() -> None:
    candidates = [candidate("a", reusable=HOT, load=busy(20))] + [candidate(name, load=busy(20)) for name in "bcd"]
    assert run(new_router(), candidates, [query()] * 60) == {"a": 60}


@pytest.mark.parametrize(
    ("holder", "other", "held"),
    [
        (16, 0, False),  # not above the floor
        (17, 0, True),
        (30, 14, False),  # not above twice (14 + 1)
        (31, 14, True),
    ],
)
def test_the_guard_needs_both_the_floor_and_the_multiple(holder: int, other: int, held: bool) -> None:
    candidates = [candidate("a", reusable=HOT, load=busy(holder)), candidate("b", load=busy(0, other))]
    assert decide(new_router(), candidates, query()).reason == ("load" if held else "prefix")


def test_load_is_judged_per_weight() -> None:
    candidates = [candidate("a", reusable=HOT, load=busy(30), weight=2), candidate("b")]
    assert decide(new_router(), candidates, query()).worker == worker("a")


def test_the_next_best_prefix_follows_the_one_held_back() -> None:
    candidates = [
        candidate("a", reusable=HOT, load=busy(64)),
        candidate("b", reusable=512, load=busy(10)),
        candidate("c", reusable=16),
        candidate("d"),
    ]
    decision = decide(new_router(), candidates, query())
    assert (decision.worker, decision.reason) == (worker("b"), "load")


def test_an_equally_long_prefix_elsewhere_is_still_a_prefix() -> None:
    candidates = [candidate("a", reusable=HOT, load=busy(64)), candidate("b", reusable=HOT, media=(0, HOT, 0, 0))]
    decision = decide(new_router(), candidates, query())
    assert (decision.worker, decision.reason) == (worker("b"), "prefix")


def test_unknown_load_never_triggers_the_guard_unless_ends_are_reported() -> None:
    candidates = [candidate("a", reusable=HOT, load=UNKNOWN_LOAD), candidate("b", load=busy(0))]
    silent = new_router()
    assert run(silent, candidates, [query()] * 100) == {"a": 100}
    reporting = new_router()
    assert run(reporting, candidates, [query()], finish=True) == {"a": 1}
    assert run(reporting, candidates, [query()] * 17, start=1) == {"a": 17}
    assert run(reporting, candidates, [query()] * 5, start=2) == {"b": 5}


def test_own_requests_since_the_report_count_warm_ones_less() -> None:
    cold = [candidate("a", reusable=16, load=busy(15, 0, 0.0)), candidate("b", load=busy(0, 0, 0.0))]
    assert run(new_router(), cold, [query()] * 10, every_s=0.001)["a"] == 2
    warm = [candidate("a", reusable=HOT, load=busy(15, 0, 0.0)), candidate("b", load=busy(0, 0, 0.0))]
    assert run(new_router(), warm, [query()] * 10, every_s=0.001)["a"] == 5


def test_a_new_report_replaces_the_requests_it_has_seen() -> None:
    def candidates(now: float) -> list[Candidate]:
        return [candidate("a", reusable=16, load=busy(0, 0, now - 0.05)), candidate("b", load=busy(0))]

    assert run(new_router(), candidates, [query()] * 60, every_s=0.01) == {"a": 60}


def test_a_stale_report_is_no_report() -> None:
    candidates = [candidate("a", reusable=HOT, load=busy(64, 0, 0.0)), candidate("b", load=busy(0, 0, 11.0))]
    assert decide(new_router(), candidates, query(), 9.0).reason == "load"
    assert decide(new_router(), candidates, query(), 11.0).reason == "prefix"


def test_an_infinite_floor_switches_the_guard_off() -> None:
    settings = RouterSettings(guard_floor_requests=float("inf"))
    candidates = [candidate("a", reusable=HOT, load=busy(1e6)), candidate("b")]
    assert decide(new_router(settings), candidates, query()).reason == "prefix"


@pytest.mark.parametrize("bad", [{"guard_multiple": 0.5}, {"guard_floor_requests": -1}, {"spread_half_life_s": 0}])
def test_numbers_that_make_no_sense_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        RouterSettings(**bad)  # type: ignore[arg-type]


def test_unknown_load_ranks_as_the_average_per_weight() -> None:
    candidates = [
        candidate("a", load=busy(4), weight=2),
        candidate("b", load=busy(6)),
        candidate("c", load=UNKNOWN_LOAD),
    ]
    settings = RouterSettings()
    found = pressures(candidates, Assignments(settings), settings, 0.0)
    assert found == {
        worker("a"): Pressure(2.0, held=False),
        worker("b"): Pressure(6.0, held=False),
        worker("c"): Pressure(4.0, held=False),
    }


@pytest.mark.parametrize("requests", [3.0, None])
def test_a_report_of_no_known_time_is_one_without_a_time(core: ModuleType | None, requests: float | None) -> None:
    """NaN is no time in either core: own requests of the last while are added to the report."""
    settings = RouterSettings()
    table: Any = standing_table(2, settings, core)
    book = new_book(settings, core)
    book.add(90.0, 1.0, 0, 1.0)
    for place, sampled_at in enumerate((nan, None)):
        table.tell(place, Told(requests, sampled_at, 1.0))
    table.look({0: book, 1: book}, 91.0, False)
    assert table.ranks() == [(requests or 0.0) + 1.0] * 2
