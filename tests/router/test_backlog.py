"""A holder's queue of prompts against its prefix: the rule against brute force, and what the router makes of it."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.assignments import Assignments
from router.backlog import Queue, outweighed
from router.candidate import UNKNOWN_LOAD, Candidate
from router.route import Router
from router.settings import RouterSettings
from tests.router.builders import busy, candidate, decide, query, run, unique, worker

HOT = 992
queues = st.lists(st.builds(Queue, st.integers(0, 100_000), st.integers(0, 10_000)), min_size=1, max_size=8)


def new_router(settings: RouterSettings | None = None) -> Router:
    return Router(settings or RouterSettings(), Random(7))


def reporting_router(**backlogs: int) -> Router:
    """A router that sent each worker a prompt of so many tokens, and had one first token reported."""
    router = new_router()
    for name, tokens in {"other": 1, **backlogs}.items():
        request = query(range(1_000_000, 1_000_000 + tokens))
        router.record(name, decide(router, [candidate(name)], request), request, 0.0)
    assert router.first_token("other", 0.0)
    return router


@given(queues, st.integers(0, 10_000), st.sampled_from([0.05, 0.5, 1.0]))
def test_one_loses_to_another_whose_shorter_backlog_is_worth_more_than_the_tokens_saved(
    line: list[Queue], prompt_tokens: int, weight: float
) -> None:
    expected = [
        any(weight * (one.backlog - prompt_tokens - other.backlog) > max(0, one.saved - other.saved) for other in line)
        for one in line
    ]
    assert outweighed(line, prompt_tokens, weight) == expected


@given(queues, st.integers(0, 10_000), st.sampled_from([0.05, 0.5, 1.0]))
def test_not_everybody_loses(line: list[Queue], prompt_tokens: int, weight: float) -> None:
    assert not all(outweighed(line, prompt_tokens, weight))


@pytest.mark.parametrize(("backlog", "chosen"), [(20_839, "a"), (20_841, "b")])
def test_a_prefix_of_992_tokens_is_worth_a_queue_of_twenty_times_as_many_and_the_prompt(
    backlog: int, chosen: str
) -> None:
    """992 / 0.05 + 1000 = 20,840."""
    router = reporting_router(a=backlog)
    decision = decide(router, [candidate("a", reusable=HOT), candidate("b")], query())
    assert decision.worker == worker(chosen)
    assert decision.reason == ("prefix" if chosen == "a" else "load")
    assert decision.scores[worker("a")] == pytest.approx(HOT / 1000 - (chosen == "b"))


def test_the_queue_counts_per_weight() -> None:
    router = reporting_router(a=30_000)
    candidates = [candidate("a", reusable=HOT, weight=2), candidate("b")]
    assert decide(router, candidates, query()).worker == worker("a")


def test_without_reports_of_first_tokens_the_queue_is_not_known_and_does_not_count() -> None:
    router = new_router()
    request = query(range(1_000_000, 1_090_000))
    router.record("1", decide(router, [candidate("a")], request), request, 0.0)
    assert router.finished("1", 0.0)
    router.record("2", decide(router, [candidate("a")], request), request, 0.0)
    candidates = [candidate("a", reusable=HOT), candidate("b")]
    assert decide(router, candidates, query()).worker == worker("a")


def test_a_weight_of_zero_switches_the_rule_off() -> None:
    router = new_router(RouterSettings(backlog_weight=0))
    for number in range(2):
        request = query(range(1_000_000, 1_090_000))
        router.record(str(number), decide(router, [candidate("a")], request), request, 0.0)
    router.first_token("0", 0.0)
    assert decide(router, [candidate("a", reusable=HOT), candidate("b")], query()).worker == worker("a")


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(ValueError, match="backlog_weight"):
        RouterSettings(backlog_weight=-0.1)


def test_a_cold_prompt_goes_where_the_fewest_tokens_wait_not_the_fewest_requests() -> None:
    router = reporting_router(a=50_000, b=300)
    candidates = [candidate("a", load=busy(1)), candidate("b", load=busy(6))]
    assert decide(router, candidates, unique(1)).worker == worker("b")


def test_a_worker_held_back_by_its_requests_is_nobodys_measure() -> None:
    """c has no queue of prompts but too many requests: a's prefix is weighed against b's queue only."""
    router = reporting_router(a=30_000, b=30_000)
    candidates: list[Candidate] = [
        candidate("a", reusable=HOT, load=busy(2)),
        candidate("b", load=busy(2)),
        candidate("c", load=busy(64)),
    ]
    assert decide(router, candidates, query()).worker == worker("a")


def test_a_herd_follows_its_first_although_that_one_computes_the_prefix() -> None:
    router = reporting_router()
    candidates = [candidate("a", load=UNKNOWN_LOAD), candidate("b", load=UNKNOWN_LOAD)]
    requests = [query([*range(960), *range(5000 + number, 5040 + number)]) for number in range(12)]
    assert sorted(run(router, candidates, requests, every_s=0.002).values()) == [12]


def test_first_tokens_count_as_reported_only_while_they_are() -> None:
    assignments = Assignments(RouterSettings())
    assignments.add("1", worker("a"), weight=1.0, prompt=100, reusable=0, now=0.0)
    assert not assignments.first_tokens_reported
    assert assignments.first_token("1", 1.0)
    assignments.advance(60.9)
    assert assignments.first_tokens_reported
    assignments.advance(61.0)
    assert not assignments.first_tokens_reported
