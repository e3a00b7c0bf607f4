"""The decision: longest prefix, ties, cold prompts, sessions, guesses and the reasons given."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.worker import Trust, Worker
from router.candidate import UNKNOWN_LOAD, Candidate, WorkerLoad
from router.route import Router
from router.settings import RouterSettings
from tests.router.builders import busy, candidate, decide, query, run, unique, worker

SETTINGS = RouterSettings()


def new_router(settings: RouterSettings = SETTINGS) -> Router:
    return Router(settings, Random(7))


# Prefixes


def test_the_longest_reusable_prefix_wins_even_when_more_is_matched_elsewhere() -> None:
    decision = decide(
        new_router(), [candidate("a", reusable=32, matched=64), candidate("b", reusable=48, matched=48)], query()
    )
    assert (decision.worker.instance, decision.reason, decision.reusable) == ("b", "prefix", 48)


def test_the_deeper_match_decides_between_equal_reuse() -> None:
    candidates = [candidate("a", reusable=32, matched=33), candidate("b", reusable=32, matched=47)]
    assert decide(new_router(), candidates, query()).worker == worker("b")


@pytest.mark.parametrize(
    ("faster", "slower"),
    [
        ((48, 0, 0, 0), (0, 48, 0, 0)),
        ((0, 48, 0, 0), (0, 0, 48, 0)),
        ((0, 0, 48, 0), (0, 0, 0, 48)),
        ((0, 0, 48, 0), (40, 0, 0, 8)),
        ((32, 16, 0, 0), (32, 0, 16, 0)),
    ],
)
def test_the_faster_tier_decides_between_equal_depth_and_an_unknown_one_comes_last(
    faster: tuple[int, int, int, int], slower: tuple[int, int, int, int]
) -> None:
    candidates = [candidate("slow", reusable=48, media=slower), candidate("fast", reusable=48, media=faster)]
    assert decide(new_router(), candidates, query()).worker == worker("fast")


def test_a_longer_prefix_on_a_slow_tier_beats_a_shorter_one_on_the_gpu() -> None:
    candidates = [candidate("a", reusable=12, media=(0, 12, 0, 0)), candidate("b", reusable=8)]
    decision = decide(new_router(), candidates, query(range(13)))
    assert decision.worker == worker("a")
    assert decision.scores == {worker("a"): 12 / 13, worker("b"): 8 / 13}


def test_equal_holders_share_the_requests() -> None:
    candidates = [candidate(name, reusable=992) for name in "ab"] + [candidate("c")]
    picks = run(new_router(), candidates, [query()] * 40)
    assert picks == {"a": 20, "b": 20}


def test_untrusted_matches_count_as_nothing() -> None:
    candidates = [candidate("a", reusable=500, trust=Trust.NONE), candidate("b", reusable=16)]
    assert decide(new_router(), candidates, query()).worker == worker("b")


# Cold prompts and ties


def test_cold_prompts_one_at_a_time_are_spread_evenly_whatever_the_order() -> None:
    router = new_router()
    candidates = [candidate("a"), candidate("b")]
    picks = run(router, candidates, map(unique, range(200)), finish=True)
    picks += run(router, candidates[::-1], map(unique, range(200, 400)), start=10, finish=True)
    assert picks == {"a": 200, "b": 200}


def test_the_first_cold_request_has_no_favourite() -> None:
    candidates = [candidate(name) for name in "abcd"]
    first = {decide(Router(SETTINGS, Random(seed)), candidates, query()).worker.instance for seed in range(60)}
    assert first == set("abcd")


def test_cold_prompts_follow_the_weights() -> None:
    candidates = [candidate("a", weight=3), candidate("b", weight=1)]
    picks = run(new_router(), candidates, map(unique, range(400)), every_s=3, finish=True)
    assert picks["a"] == pytest.approx(300, abs=4)


def test_a_prompt_shorter_than_a_block_is_cold_and_spread() -> None:
    router = new_router()
    candidates = [candidate("a", matched=4), candidate("b")]
    assert run(router, candidates, [query(range(5))] * 20) == {"a": 10, "b": 10}
    assert decide(router, candidates, query(range(5)), 1.0).reason == "cold"


def test_cold_prompts_go_to_the_least_loaded() -> None:
    candidates = [candidate("a", load=busy(3, 2)), candidate("b", load=busy(4, 0))]
    decision = decide(new_router(), candidates, query())
    assert (decision.worker, decision.reason) == (worker("b"), "cold")


@pytest.mark.parametrize("unknown", [UNKNOWN_LOAD, busy(float("nan"), None), busy(0, None), busy(-1, 0)])
def test_a_worker_of_unknown_load_gets_about_its_share(unknown: WorkerLoad) -> None:
    def candidates(now: float) -> list[Candidate]:
        return [candidate("a", load=busy(3, 0, sampled_at=now // 1)), candidate("b", load=unknown)]

    picks = run(new_router(), candidates, map(unique, range(100)), every_s=0.05)
    assert 40 <= picks["a"] <= 60


def test_a_newcomer_is_not_flooded_while_loads_are_not_known() -> None:
    router = new_router()
    old = [candidate(name, load=UNKNOWN_LOAD) for name in "abc"]
    run(router, old, map(unique, range(3000)), every_s=0.01)
    picks = run(router, [*old, candidate("new", load=UNKNOWN_LOAD)], map(unique, range(3000, 4000)), start=30)
    assert picks["new"] <= 400


# Eligibility and reasons


def test_nobody_eligible_gives_no_decision() -> None:
    assert new_router().decide(query(), [candidate("a", why="draining")], 0.0) is None
    assert new_router().decide(query(), [], 0.0) is None


def test_one_eligible_worker_is_the_only_one_even_with_a_prefix() -> None:
    candidates = [candidate("a", reusable=16), candidate("b", reusable=992, why="excluded")]
    decision = decide(new_router(), candidates, query())
    assert (decision.worker, decision.reason, set(decision.scores)) == (worker("a"), "only", {worker("a")})


def test_without_tokens_or_trust_the_choice_falls_back_to_load() -> None:
    blind = [candidate("a", load=busy(5), trust=Trust.NONE), candidate("b", trust=Trust.NONE)]
    seeing = [candidate("a", load=busy(5)), candidate("b")]
    for candidates, request in ((blind, query()), (seeing, query(None)), (blind[1:], query())):
        decision = decide(new_router(), candidates, request)
        assert (decision.worker, decision.reason) == (worker("b"), "fallback")


def test_one_trusted_worker_among_untrusted_ones_is_not_a_fallback() -> None:
    assert decide(
        new_router(), [candidate("a", trust=Trust.PARTIAL), candidate("b", trust=Trust.NONE)], query()
    ).reason == ("cold")


# Sessions


def test_a_session_stays_on_its_worker_while_prompts_are_cold() -> None:
    router = new_router()
    candidates = [candidate(name) for name in "abcd"]
    home = decide(router, candidates, query(range(40), session="s"))
    router.record("1", home, query(range(40), session="s"), 0.0)
    for number in range(1, 9):
        run(router, candidates, [unique(100 + number)], start=number)
        request = query(range(number * 100_000, number * 100_000 + 40), session="s")
        decision = decide(router, candidates, request, float(number))
        assert (decision.worker, decision.reason) == (home.worker, "affinity")


def test_a_session_never_beats_a_longer_prefix_but_breaks_a_tie() -> None:
    router = new_router()
    request = query(session="s")
    router.record("1", decide(router, [candidate("a")], request), request, 0.0)
    longer = decide(router, [candidate("a", reusable=32), candidate("b", reusable=48)], request, 1.0)
    assert (longer.worker, longer.reason) == (worker("b"), "prefix")
    for _ in range(5):
        tie = decide(router, [candidate("a", reusable=48), candidate("b", reusable=48)], request, 1.0)
        assert (tie.worker, tie.reason) == (worker("a"), "prefix")


def test_a_session_yields_to_the_load_guard_and_expires() -> None:
    router = new_router(RouterSettings(session_ttl_s=5))
    router.record("1", decide(router, [candidate("a")], query(session="s")), query(session="s"), 0.0)
    other = query(range(5000, 5040), session="s")
    overloaded = decide(router, [candidate("a", load=busy(64, 40)), candidate("b")], other, 1.0)
    assert (overloaded.worker, overloaded.reason) == (worker("b"), "cold")
    late = [candidate("a", load=busy(1)), candidate("b")]
    assert decide(router, late, other, 4.9).worker == worker("a")
    assert decide(router, late, other, 5.0).worker == worker("b")


# Guesses


def test_a_herd_with_one_new_prefix_follows_the_first_until_the_guess_expires() -> None:
    router = new_router()
    candidates = [candidate("a", load=UNKNOWN_LOAD), candidate("b", load=UNKNOWN_LOAD)]
    requests = [query([*range(40), number]) for number in range(20)]
    assert sorted(run(router, candidates, requests, every_s=0.002).values()) == [20]
    first = decide(router, candidates, requests[0], 1.9)
    assert (first.reason, first.reusable) == ("cold", 0)
    assert decide(router, candidates, requests[0], 60.0).worker != first.worker


def test_a_herd_follows_only_up_to_the_load_guard() -> None:
    candidates = [candidate("a", load=busy(0, 0, 0.0)), candidate("b", load=busy(0, 0, 0.0))]
    picks = run(new_router(), candidates, [query()] * 40, every_s=0.001)
    assert min(picks.values()) >= 10


def test_following_a_guess_does_not_prolong_it() -> None:
    router = new_router()
    candidates = [candidate("a", load=UNKNOWN_LOAD), candidate("b", load=UNKNOWN_LOAD)]
    picks = run(router, candidates, [query()] * 100, every_s=0.5)
    assert min(picks.values()) >= 30


def test_a_real_match_wins_over_a_guess() -> None:
    router = new_router()
    router.record("1", decide(router, [candidate("a")], query()), query(), 0.0)
    decision = decide(router, [candidate("a"), candidate("b", reusable=16)], query(), 0.1)
    assert (decision.worker, decision.reason) == (worker("b"), "prefix")


def test_a_removed_worker_leaves_no_guess_session_or_load() -> None:
    router = new_router()
    request = query(session="s")
    for number in range(30):
        router.record(str(number), decide(router, [candidate("a")], request), request, 0.0)
    assert router.inflight_prefill_tokens(worker("a")) == 30_000
    router.forget(worker("a"))
    assert router.inflight_prefill_tokens(worker("a")) == 0
    decisions = [decide(router, [candidate("a"), candidate("b")], request, 0.1) for _ in range(40)]
    assert {d.worker.instance for d in decisions} == {"a", "b"}
    assert {d.reason for d in decisions} == {"cold"}
    assert router.finished("3", 0.2)


def test_a_dry_run_leaves_no_trace() -> None:
    router = new_router()
    candidates = [candidate("a"), candidate("b")]
    picks = [decide(router, candidates, query(session="s"), 0.1).worker.instance for _ in range(60)]
    assert set(picks) == {"a", "b"}
    assert router.inflight_prefill_tokens(worker("a"), 0.2) == 0


# Feedback


def test_prefill_tokens_in_flight_end_with_the_first_token_the_finish_or_time() -> None:
    router = new_router()
    for number in range(3):
        router.record(str(number), decide(router, [candidate("a", reusable=992)], query()), query(), 0.0)
    assert router.inflight_prefill_tokens(worker("a")) == 24
    assert router.first_token("0", 1.0)
    assert router.finished("1", 1.0)
    assert router.inflight_prefill_tokens(worker("a")) == 8
    assert router.inflight_prefill_tokens(worker("a"), 30.0) == 0
    assert not router.first_token("unknown", 1.0)
    assert not router.finished("0", 600.0)


# Properties

loads = st.one_of(
    st.just(UNKNOWN_LOAD),
    st.builds(WorkerLoad, st.integers(0, 80), st.integers(0, 80), st.none(), st.none()),
)


@st.composite
def fleets(draw: st.DrawFn, load: st.SearchStrategy[WorkerLoad] = loads) -> list[Candidate]:
    names = draw(st.lists(st.sampled_from("abcdefgh"), min_size=1, unique=True))
    return [
        candidate(
            name,
            reusable=(reusable := draw(st.integers(0, 8)) * 16),
            matched=reusable + draw(st.integers(0, 15)),
            load=draw(load),
            weight=draw(st.sampled_from([0.5, 1.0, 2.0])),
            trust=draw(st.sampled_from(Trust)),
            why=draw(st.sampled_from([None, None, "draining"])),
        )
        for name in names
    ]


@given(fleets(), st.randoms(use_true_random=False))
def test_only_eligible_workers_are_chosen_and_the_order_does_not_matter(
    candidates: list[Candidate], random: Random
) -> None:
    eligible = {c.worker for c in candidates if c.why is None}
    decision = new_router().decide(query(), candidates, 0.0)
    random.shuffle(candidates)
    assert new_router().decide(query(), candidates, 0.0) == decision
    if decision is None:
        assert not eligible
    else:
        assert decision.worker in eligible == set(decision.scores)


@given(fleets(st.just(busy(2.0))))
def test_with_loads_below_the_guard_the_longest_reusable_prefix_wins(candidates: list[Candidate]) -> None:
    eligible = [c for c in candidates if c.why is None]
    decision = new_router().decide(query(), candidates, 0.0)
    if decision is not None:
        trusted = {c.worker: c.reusable if c.trust is not Trust.NONE else 0 for c in eligible}
        assert trusted[decision.worker] == decision.reusable == max(trusted.values())
        assert decision.reason != "load"


@given(fleets(), st.integers(1, 64))
def test_the_chosen_prefix_holder_stays_chosen_when_it_holds_more(candidates: list[Candidate], more: int) -> None:
    before = new_router().decide(query(), candidates, 0.0)
    if before is None or before.reusable == 0:
        return

    def grown(c: Candidate) -> Candidate:
        depth = c.matched + more
        return c._replace(reusable=c.reusable + more, matched=depth, by_medium=(depth, 0, 0, 0))

    after = new_router().decide(query(), [grown(c) if c.worker == before.worker else c for c in candidates], 0.0)
    assert after is not None
    assert after.worker == before.worker


@given(fleets())
def test_the_score_of_the_chosen_worker_is_the_highest(candidates: list[Candidate]) -> None:
    decision = new_router().decide(query(), candidates, 0.0)
    if decision is not None:
        assert decision.scores[decision.worker] == max(decision.scores.values())


@given(fleets(), st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=60))
def test_any_history_leaves_counts_that_are_never_negative(
    candidates: list[Candidate], history: list[tuple[int, bool]]
) -> None:
    router = new_router(RouterSettings(request_limit=16, request_ttl_s=20, assignment_ttl_s=10, prefill_ttl_s=5))
    now = 0.0
    for number, (wait, report) in enumerate(history):
        now += wait
        decision = router.decide(query(), candidates, now)
        if decision is not None:
            router.record(str(number), decision, query(), now)
        if report:
            router.first_token(str(number // 2), now)
            router.finished(str(number // 3), now)
    for c in candidates:
        assert router.inflight_prefill_tokens(c.worker) >= 0
        assert router.inflight_prefill_tokens(c.worker, now + 5) == 0


def test_workers_of_one_instance_are_told_apart_by_rank() -> None:
    ranks = [candidate("a"), candidate("a")._replace(worker=Worker("a", 1), reusable=16)]
    assert decide(new_router(), ranks, query()).worker == Worker("a", 1)
