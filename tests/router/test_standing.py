"""Deciding among a kept standing finds what deciding anew finds, whatever happened in between."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.prompt import WorkerMatch
from index.worker import Trust, Worker
from router.assignments import Assignments
from router.candidate import UNKNOWN_LOAD, Candidate, RouteQuery, WorkerLoad
from router.changes import Changes
from router.load_guard import pressures
from router.route import Router
from router.settings import RouterSettings
from router.standing import Standing
from tests.router.builders import candidate, query, worker
from tests.router.seen import seen

QUICK = RouterSettings(
    guard_floor_requests=2, load_window_s=1, load_stale_s=3, assignment_ttl_s=6, spread_half_life_s=5,
    request_ttl_s=8, prefill_ttl_s=4, session_ttl_s=5, predict_ttl_s=2, backlog_weight=0.5,
)  # fmt: skip
NAMES = "abcdef"
PROMPTS = [query(range(length)) for length in (8, 40, 200)]


class Twins:
    """Two routers that live through the same; one decides anew each time, the other among its standing."""

    def __init__(self, dice: Random) -> None:
        self.dice = dice
        self.now = 100.0
        self.anew, self.kept = Router(QUICK, Random(1)), Router(QUICK, Random(1))
        self.fleet = {name: self.candidate(name) for name in NAMES[: dice.randint(1, len(NAMES))]}
        self.standing = self.kept.standing(list(self.fleet.values()))
        self.sent: list[str] = []

    def candidate(self, name: str) -> Candidate:
        trust = self.dice.choice([Trust.EXACT, Trust.EXACT, Trust.PARTIAL, Trust.NONE])
        return candidate(name, load=self.load(), weight=self.dice.choice([0.3, 1.0, 1.0, 2.0]), trust=trust)

    def load(self) -> WorkerLoad:
        age = self.dice.choice([None, 0.0, 0.5, 2.9, 3.1])
        known = WorkerLoad(float(self.dice.randint(0, 3)), 0.0, None, None if age is None else self.now - age)
        return self.dice.choice([known, known, known, UNKNOWN_LOAD])

    def matches(self) -> dict[Worker, WorkerMatch]:
        found = {}
        for name in self.fleet:
            blocks = self.dice.choice([0, 0, 0, 1, 2])
            if self.dice.random() < 0.6:
                other = self.dice.choice([0, blocks])
                media = (16 * (blocks - other), 0, 0, 16 * other)
                found[worker(name)] = WorkerMatch(worker(name), 16 * blocks, 16 * max(0, blocks - 1), media)
        return found

    def live(self) -> None:
        """Something happens, or nothing."""
        self.now += self.dice.choice([0.0, 0.0, 0.01, 0.4, 1.0, 1.0, 5.0])
        if self.dice.random() < 0.1:
            self.now = round(self.now)  # so that known times are met to the last bit
        if self.dice.random() < 0.4:
            name = self.dice.choice(list(self.fleet))
            self.fleet[name] = self.candidate(name)
            self.standing.replace(self.fleet[name])
        if self.sent and self.dice.random() < 0.5:
            request_id = self.dice.choice(self.sent)
            report = self.dice.choice([Router.finished, Router.finished, Router.first_token])
            assert report(self.anew, request_id, self.now) == report(self.kept, request_id, self.now)
        if self.dice.random() < 0.05:
            name = self.dice.choice(list(self.fleet))
            self.anew.forget(worker(name))
            self.kept.forget(worker(name))

    def route(self, number: int) -> None:
        """One request to both: the same answer, and the same trace of it."""
        asked = self.dice.choice(PROMPTS)
        asked = asked._replace(session_id=self.dice.choice([None, None, "s", "t"]))
        if self.dice.random() < 0.1:
            asked = RouteQuery(None, asked.namespace, asked.session_id, None)
        matches = {} if asked.tokens is None else self.matches()
        expected = self.anew.decide(asked, [with_match(one, matches) for one in self.fleet.values()], self.now)
        found = self.kept.decide_among(asked, self.standing, matches, self.now)
        assert expected is not None
        assert found == expected._replace(scores={})
        if self.dice.random() < 0.8:
            self.anew.record(str(number), expected, asked, self.now)
            self.kept.record(str(number), found, asked, self.now)
            self.sent.append(str(number))


def with_match(one: Candidate, matches: dict[Worker, WorkerMatch]) -> Candidate:
    match = matches.get(one.worker)
    if match is None:
        return one
    return one._replace(matched=match.matched, reusable=match.reusable, by_medium=match.by_medium)


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 1 << 32))
def test_it_decides_as_deciding_anew_does(seed: int) -> None:
    twins = Twins(Random(seed))
    for number in range(40):
        twins.live()
        twins.route(number)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 1 << 32))
def test_its_ranks_are_those_of_the_load_guard(seed: int) -> None:
    twins = Twins(Random(seed))
    for number in range(20):
        twins.live()
        twins.route(number)
        fleet, assignments = list(twins.fleet.values()), twins.kept._assignments
        twins.standing.refresh(twins.now)
        if assignments.first_tokens_reported:
            twins.standing.weigh({}, 0)
        for one, (rank, held, _) in pressures(fleet, assignments, QUICK, twins.now).items():
            place = twins.standing.places[one]
            assert (twins.standing.ranks[place], twins.standing.held(place)) == (rank, held)


def test_more_changes_than_are_remembered_are_no_harm() -> None:
    assignments = Assignments(QUICK)
    standing = Standing([candidate("a", load=UNKNOWN_LOAD), candidate("b", load=UNKNOWN_LOAD)], assignments, QUICK)
    standing.refresh(1.0)
    for number in range(2000):
        assignments.add(str(number), worker("a"), weight=1.0, prompt=10, reusable=0, now=1.0)
    standing.refresh(1.0)
    assert standing.ranks == [2000.0, 0.0]
    assert standing.held(0) is False  # no engine reports and no ends are reported: nothing is known
    standing.refresh(3.0)
    assert standing.ranks == [0.0, 0.0]


def test_a_clock_that_goes_back_is_followed() -> None:
    load = WorkerLoad(5.0, 0.0, None, 10.0)
    standing = Standing([candidate("a", load=load), candidate("b")], Assignments(QUICK), QUICK)
    standing.refresh(14.0)
    assert standing.ranks == [0.0, 0.0]
    standing.refresh(12.0)
    assert standing.ranks == [5.0, 0.0]


def test_changes_are_read_from_any_place() -> None:
    changes = Changes[int]()
    for number in range(5):
        changes.note(number)
    assert sorted(changes.since(3) or []) == [3, 4]
    assert changes.since(5) == []
    for number in range(5, 2000):
        changes.note(number)
    assert changes.since(5) is None
    assert sorted(changes.since(1990) or []) == list(range(1990, 2000))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 1 << 32))
def test_the_cost_since_any_time_is_that_of_the_unfinished_requests(seed: int) -> None:
    dice, assignments, now = Random(seed), Assignments(QUICK), 10.0
    sent: dict[str, tuple[float, float]] = {}
    for number in range(60):
        now += dice.choice([0.0, 0.1, 1.0])
        reusable = dice.randint(0, 100)
        assignments.add(str(number), worker("a"), weight=1.0, prompt=100, reusable=reusable, now=now)
        sent[str(number)] = now, max(0.25, 1 - reusable / 100)
        if dice.random() < 0.5:
            ended = dice.choice(list(sent))
            assignments.finished(ended, now)
            sent.pop(ended)
        since = now - dice.choice([0.0, 0.5, 2.0, 3.0, 7.0])
        alive = [cost for at, cost in sent.values() if at >= since and at > now - QUICK.assignment_ttl_s]
        assert seen(assignments, worker("a"), since).cost == pytest.approx(sum(alive), abs=1e-6)
