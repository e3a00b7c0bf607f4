"""What the six classic workloads must show of the two caches, whatever is drawn."""

from __future__ import annotations

from random import Random

import pytest

from benchmarks.simulate import CACHES, Outcome, Workload, conversations, one_prefix, outcome


def outcomes(workload: Workload, seed: int) -> list[Outcome]:
    return [outcome(workload, cache, seed) for cache in CACHES]


def prefix_of(shared: int) -> Workload:
    return Workload("", lambda random: one_prefix(random, shared, (20, 60), (4, 8), requests=64), 60_000, "")


def talk(capacity: int) -> Workload:
    return Workload("", lambda random: conversations(random, sessions=8, turns=3), capacity, "")


@pytest.mark.parametrize("seed", range(3))
def test_blocks_lose_the_end_of_a_shared_prefix_that_fills_no_block(seed: int) -> None:
    """Workload A: 1000 tokens are 62 blocks and 8 tokens, lost by every request but the first."""
    blocks, tokens, pages = outcomes(prefix_of(1000), seed)
    assert tokens.hits == 63 * 1000
    assert tokens.hits - blocks.hits == 63 * 8
    assert pages == blocks


@pytest.mark.parametrize("seed", range(3))
def test_blocks_lose_nothing_of_a_prefix_of_whole_blocks(seed: int) -> None:
    """Workload B."""
    blocks, tokens, pages = outcomes(prefix_of(1008), seed)
    assert blocks == tokens == pages


def test_blocks_see_no_prefix_shorter_than_one() -> None:
    """Workload C."""
    blocks, tokens, pages = outcomes(prefix_of(12), 1)
    assert (blocks.hits, tokens.hits, pages.hits) == (0, 63 * 12, 0)


@pytest.mark.parametrize("seed", range(3))
def test_with_room_for_all_conversations_pages_are_as_good_as_blocks(seed: int) -> None:
    """Workload D: every turn finds the one before, but for the part of a block (of a token) at its end."""
    blocks, tokens, pages = outcomes(talk(60_000), seed)
    assert pages == blocks
    assert blocks.evicted == tokens.evicted == 0
    turns = 8 * 3
    assert blocks.hits <= tokens.hits < blocks.hits + 16 * turns


def test_a_turn_finds_all_that_was_computed_before_it() -> None:
    """The last sampled token has no KV; on page 1 all else is reused, from the second turn on."""
    requests = conversations(Random(5), sessions=1, turns=4)
    tokens = outcome(Workload("", lambda _: requests, 60_000, ""), "radix page 1", 0)
    assert tokens.hits == sum(len(turn.prompt) + len(turn.output) - 1 for turn in requests[:-1])


@pytest.mark.parametrize("cache", CACHES)
def test_less_room_costs_hits_and_evicts(cache: str) -> None:
    """Workloads E and F."""
    many = [
        Workload("", lambda random: conversations(random, sessions=16, turns=4), capacity, "")
        for capacity in (60_000, 14_016)
    ]
    ample, scarce = (outcome(workload, cache, 2) for workload in many)
    assert scarce.hits < ample.hits
    assert scarce.evicted > ample.evicted == 0
