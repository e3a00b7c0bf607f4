"""The fleet simulation on traces small enough to reckon by hand, and against the running service."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.fleet_engine import Costs
from benchmarks.fleet_play import POLICIES, Result, Setting, play
from benchmarks.fleet_trace import BLOCK_TOKENS, Arrival, prompt_units, read_trace, units

COSTS = Costs(prefill_us=100.0, decode_us=10_000.0, capacity_tokens=100 * BLOCK_TOKENS)
SECOND = 10_000
"""So many tokens a second does an engine of these costs compute."""


def arrival(at_s: float, blocks: list[int], tokens: int, output_tokens: int = 1) -> Arrival:
    output = [(1 << 31) + round(at_s * 1000) * 1000 + number for number in range(units(output_tokens))]
    return Arrival(at_s, prompt_units(blocks, tokens), output, tokens, output_tokens)


def played(arrivals: list[Arrival], policy: str, engines: int = 1, costs: Costs = COSTS) -> Result:
    return play(arrivals, Setting(engines, costs, rate=1.0), policy)


TALK = [
    arrival(0.0, [1, 2], 1024),
    arrival(10.0, [1, 2, 3], 1536),  # finds two blocks
    arrival(20.0, [7], 512),  # finds nothing
    arrival(30.0, [1, 2, 3], 1536),  # finds two: the last token is always computed, so its block is
    arrival(40.0, [1, 9, 3], 1400),  # finds one: what differs from the second block on is another prompt
]
TALK_TOKENS = 1024 + 1536 + 512 + 1536 + 1400


def test_one_cache_finds_what_was_there_before() -> None:
    assert played(TALK, "bound").hit_rate == pytest.approx((1024 + 1024 + 512) / TALK_TOKENS)


def test_turn_and_turn_about_finds_what_that_engine_was_sent() -> None:
    """Engine 1 gets the prompts 1, 3 and 5; engine 0 gets 2 and 4."""
    assert played(TALK, "round robin", engines=2).hit_rate == pytest.approx((512 + 1024) / TALK_TOKENS)


@pytest.mark.parametrize("policy", ["text prefix", "kvroute"])
def test_who_knows_the_prefixes_finds_all_with_two_engines(policy: str) -> None:
    assert played(TALK, policy, engines=2).hit_rate == pytest.approx((1024 + 1024 + 512) / TALK_TOKENS)


def test_every_promise_is_kept_when_requests_come_one_at_a_time() -> None:
    assert played(TALK, "kvroute", engines=2).kept == 1.0


def test_a_cache_that_is_too_small_forgets_the_longest_unused() -> None:
    """Four prompts of two blocks in turn, room for five blocks and an output: each is gone when it comes again."""
    small = COSTS._replace(capacity_tokens=6 * BLOCK_TOKENS)
    rounds = [arrival(10.0 * number, [10 * (number % 4), 10 * (number % 4) + 1], 1024) for number in range(12)]
    assert played(rounds, "bound", costs=small).hit_rate == 0
    assert played(rounds, "bound").hit_rate == pytest.approx(8 * 512 / (12 * 1024))


def test_the_first_token_takes_the_computed_tokens_times_their_cost() -> None:
    result = played([arrival(0.0, [1, 2], 1024), arrival(10.0, [1, 2], 1024)], "round robin")
    assert result.ttft_mean_s == pytest.approx((1024 + 512) / SECOND / 2)


def test_a_second_prompt_waits_for_the_step_under_way_and_shares_the_next() -> None:
    """Steps of 2,048 tokens: 4,096 take two. The other, 1,024, comes in the first and is begun in the third."""
    first, second = arrival(0.0, list(range(8)), 4096), arrival(0.1, [20, 21], 1024)
    result = played([first, second], "round robin")
    assert result.ttft_mean_s == pytest.approx((0.4096 + (0.4096 + 0.1024 - 0.1)) / 2)


def test_a_prompt_that_comes_while_others_decode_waits_for_one_decode_step() -> None:
    """The first has its token at 0.0512 and decodes in steps of 10 ms; the second comes within one and starts at its
    end, 0.1012. Its step computes 512 tokens and decodes: 61.2 ms."""
    first, second = arrival(0.0, [1], 512, output_tokens=500), arrival(0.1, [2], 512)
    result = played([first, second], "round robin")
    assert result.ttft_mean_s == pytest.approx((0.0512 + (0.1012 + 0.0612 - 0.1)) / 2)


def test_all_policies_compute_a_trace_of_strangers_alike() -> None:
    strangers = [arrival(10.0 * number, [100 * number], 512) for number in range(6)]
    results = [played(strangers, policy, engines=2) for policy in POLICIES if policy != "bound"]
    assert {result.hit_rate for result in results} == {0.0}
    assert {result.compute_spread for result in results} == {1.0}


def test_the_trace_is_read_as_its_readme_says(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(
        '{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [0, 4]}\n'
        '{"timestamp": 3000, "input_length": 512, "output_length": 40, "hash_ids": [0]}\n'
    )
    first, second = read_trace(trace)
    assert first.prompt == [*range(16), 64, 65, 66]  # 600 tokens are 18.75 units of 32
    assert second.prompt == list(range(16))
    assert not set(first.output) & set(second.output)
    assert len(second.output) == 2
    assert 0 <= first.at_s < 3 <= second.at_s < 6
    assert read_trace(trace, 1) == [first]
