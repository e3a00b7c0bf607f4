"""Own assignments: counted until reported or expired, faded, and bounded."""

from __future__ import annotations

from math import inf

import pytest

from router.assignments import Assignments
from router.settings import RouterSettings
from tests.router.builders import worker
from tests.router.seen import seen

A, B = worker("a"), worker("b")


def add(assignments: Assignments, request_id: str, now: float, *, prompt: int = 100, reusable: int = 0) -> None:
    assignments.add(request_id, A, weight=1.0, prompt=prompt, reusable=reusable, now=now)


def test_a_request_runs_until_it_is_finished_or_expires() -> None:
    assignments = Assignments(RouterSettings())
    add(assignments, "1", 0.0)
    add(assignments, "2", 1.0)
    assignments.advance(1.0)
    assert seen(assignments, A, 0.0).running == 2
    assert assignments.finished("1", 2.0)
    assert assignments.finished("1", 2.0)
    assignments.advance(2.0)
    assert seen(assignments, A, 0.0).running == 1
    assignments.advance(61.0)
    assert seen(assignments, A, 0.0).running == 0
    assignments.advance(61.0)
    assert seen(assignments, B, 0.0).running == 0


def test_a_late_report_of_an_expired_assignment_changes_no_count() -> None:
    assignments = Assignments(RouterSettings())
    add(assignments, "1", 0.0)
    assignments.advance(60.0)
    assert seen(assignments, A, 0.0).running == 0
    assert assignments.finished("1", 61.0)
    assignments.advance(61.0)
    assert seen(assignments, A, 0.0).running == 0


def test_cost_since_a_time_counts_unfinished_requests_by_what_is_to_be_computed() -> None:
    assignments = Assignments(RouterSettings())
    add(assignments, "1", 1.0)
    add(assignments, "2", 2.0, reusable=50)
    add(assignments, "3", 3.0, reusable=99)
    add(assignments, "4", 3.0, prompt=0)
    assignments.advance(4.0)
    assert seen(assignments, A, 2.0).cost == pytest.approx(0.5 + 0.25 + 1)
    assignments.finished("4", 4.0)
    assignments.advance(4.0)
    assert seen(assignments, A, 0.0).cost == pytest.approx(1 + 0.5 + 0.25)
    assignments.advance(4.0)
    assert seen(assignments, B, 0.0).cost == 0


def test_the_share_fades_by_half_in_a_half_life() -> None:
    assignments = Assignments(RouterSettings(spread_half_life_s=10))
    add(assignments, "1", 0.0)
    assignments.advance(10.0)
    assert assignments.share(A) == (0.5, 0.0)
    assignments.add("2", A, weight=4.0, prompt=1, reusable=0, now=10.0)
    assignments.advance(10.0)
    assert assignments.share(A) == (0.75, 10.0)
    assignments.advance(10.0)
    assert assignments.share(B) == (0.0, -inf)


def test_ends_count_as_reported_only_while_they_are() -> None:
    assignments = Assignments(RouterSettings())
    add(assignments, "1", 0.0)
    assignments.advance(0.0)
    assert not assignments.ends_reported
    assignments.finished("1", 1.0)
    assignments.advance(60.9)
    assert assignments.ends_reported
    assignments.advance(61.0)
    assert not assignments.ends_reported


def test_ids_are_bounded_in_number_and_time_and_the_oldest_give_way() -> None:
    assignments = Assignments(RouterSettings(request_limit=10))
    for number in range(1000):
        add(assignments, str(number), 0.0)
    assert len(assignments) == 10
    assignments.advance(0.0)
    assert seen(assignments, A, 0.0).running == 10
    assert not assignments.finished("989", 0.0)
    assert assignments.finished("990", 0.0)
    assert not assignments.finished("999", 600.0)
    assert len(assignments) == 0


def test_an_id_used_again_replaces_the_first() -> None:
    assignments = Assignments(RouterSettings())
    add(assignments, "1", 0.0)
    add(assignments, "1", 0.0)
    assert (seen(assignments, A, 0.0).running, assignments.prefill_tokens(A)) == (1, 100)


def test_a_clock_that_steps_back_is_survived() -> None:
    assignments = Assignments(RouterSettings())
    add(assignments, "1", 100.0)
    add(assignments, "2", 50.0)
    assignments.advance(0.0)
    assert seen(assignments, A, 0.0).running == 2
    assignments.advance(0.0)
    assert assignments.share(A) == (2.0, 100.0)


def test_books_of_long_idle_workers_are_dropped() -> None:
    assignments = Assignments(RouterSettings())
    add(assignments, "1", 0.0)
    assignments.add("2", B, weight=1.0, prompt=1, reusable=0, now=5000.0)
    assignments.advance(5000.0)
    assert assignments.share(A) == (0.0, -inf)
