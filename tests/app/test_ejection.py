"""Left out after failures in a row, for a time that doubles, with one trial; nothing counts twice."""

from __future__ import annotations

import pytest

from app.ejection import NEVER, Ejection, EjectionRules, blame

RULES = EjectionRules(failures=3, pause_s=5.0, pause_max_s=18.0, trial_s=30.0)


def failed(ejection: Ejection, *times: float) -> Ejection:
    for now in times:
        ejection = ejection.failed(now, "connect", RULES)
    return ejection


def test_so_many_failures_in_a_row_and_not_one_less() -> None:
    assert not failed(NEVER, 1.0, 2.0).bars(2.0)
    assert failed(NEVER, 1.0, 2.0, 3.0).bars(3.0)
    assert not failed(failed(NEVER, 1.0, 2.0).succeeded(2.5), 3.0, 4.0).bars(4.0)


def test_what_fails_while_it_is_left_out_does_not_count() -> None:
    out = failed(NEVER, 1.0, 2.0, 3.0)
    assert failed(out, 3.1, 4.0, 7.9) == out
    assert out.succeeded(4.0) == out


def test_after_the_time_one_request_is_a_trial_and_the_next_waits_for_its_report() -> None:
    out = failed(NEVER, 1.0, 2.0, 3.0)
    assert out.bars(7.999)
    assert out.on_trial(8.0)
    tried = out.sent(8.0, RULES)
    assert tried.bars(8.0)
    assert not tried.bars(38.0), "a trial that nobody reports is over"
    assert tried.succeeded(9.0) == NEVER
    again = failed(tried, 9.0)
    assert again.bars(18.999)
    assert not again.bars(19.0)


def test_the_time_doubles_up_to_its_bound() -> None:
    ejection, pauses, now = failed(NEVER, 1.0, 2.0, 3.0), [], 3.0
    for _ in range(5):
        pauses.append(ejection.until - now)
        now = ejection.until
        ejection = failed(ejection.sent(now, RULES), now)
    assert pauses == [5.0, 10.0, 18.0, 18.0, 18.0]


def test_a_request_is_no_trial_where_none_is_due() -> None:
    assert NEVER.sent(1.0, RULES) == NEVER
    out = failed(NEVER, 1.0, 2.0, 3.0)
    assert out.sent(4.0, RULES) == out


@pytest.mark.parametrize(
    ("kind", "status", "label"),
    [
        ("connect", None, "connect"),
        ("timeout", None, "timeout"),
        ("status", 500, "status"),
        ("status", 503, "status"),
        ("status", 404, None),
        ("status", 429, None),
        ("aborted", None, None),
        (None, None, "unknown"),
    ],
)
def test_the_engine_is_blamed_for_what_is_its_fault(kind: str | None, status: int | None, label: str | None) -> None:
    assert blame(kind, status) == label
