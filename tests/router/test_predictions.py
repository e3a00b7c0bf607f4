"""Guesses: shared prefixes are found, bounded in time, number and work."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from random import Random
from types import ModuleType

from hypothesis import given, settings
from hypothesis import strategies as st

from router import predictions
from router.predictions import Guess, NativePredictions, Predictions
from tests.router.builders import worker
from tests.support.cores import native_module, need_native

A, B = worker("a"), worker("b")
BOUNDARIES = [*range(16, 257, 16), *range(320, 1025, 64), *range(1280, 10241, 256)]


def packed(tokens: Iterable[int]) -> bytes:
    return array("I", tokens).tobytes()


def new_predictions(
    core: ModuleType | None, ttl_s: float = 2.0, limit: int = 10_000, boundaries: int = 64
) -> Predictions | NativePredictions:
    return predictions.new_predictions(ttl_s, limit, boundaries, core)


@given(st.integers(0, 3000), st.integers(0, 3000))
def test_a_shared_prefix_is_found_at_every_boundary_it_reaches(core: ModuleType | None, shared: int, rest: int) -> None:
    guesses = new_predictions(core)
    guesses.remember(packed([*range(shared), *range(10_000, 10_000 + rest)]), "m", A, 0.0)
    found = guesses.holders(packed([*range(shared), *range(50_000, 50_500)]), "m", 1.0)
    assert found == [Guess(end, [A]) for end in reversed(BOUNDARIES) if end <= shared]


def test_the_longest_prefix_comes_first(core: ModuleType | None) -> None:
    guesses = new_predictions(core)
    guesses.remember(packed(range(16)), "m", A, 0.0)
    guesses.remember(packed(range(32)), "m", B, 0.0)
    assert guesses.holders(packed(range(100)), "m", 0.0) == [Guess(32, [B]), Guess(16, [A, B])]


def test_a_longer_guess_is_found_when_the_shorter_one_has_expired(core: ModuleType | None) -> None:
    guesses = new_predictions(core)
    guesses.remember(packed(range(16)), "m", A, 0.0)
    guesses.remember(packed(range(32)), "m", A, 1.0)
    assert guesses.holders(packed(range(100)), "m", 2.5) == [Guess(32, [A])]


def test_namespaces_are_apart(core: ModuleType | None) -> None:
    guesses = new_predictions(core)
    guesses.remember(packed(range(64)), "m", A, 0.0)
    assert guesses.holders(packed(range(64)), "other", 0.0) == []


def test_guesses_expire_and_a_lifetime_of_zero_makes_none(core: ModuleType | None) -> None:
    guesses = new_predictions(core)
    guesses.remember(packed(range(64)), "m", A, 0.0)
    assert guesses.holders(packed(range(64)), "m", 2.0) == []
    assert len(guesses) == 0
    never = new_predictions(core, ttl_s=0)
    never.remember(packed(range(64)), "m", A, 0.0)
    assert len(never) == 0


def test_work_and_memory_are_bounded(core: ModuleType | None) -> None:
    guesses = new_predictions(core, limit=100)
    guesses.remember(packed(range(1_000_000)), "m", A, 0.0)
    assert len(guesses) == 64
    guesses.remember(packed(range(5, 1_000_000)), "m", A, 0.0)
    assert len(guesses) == 100


def test_forgetting_a_worker_keeps_the_others(core: ModuleType | None) -> None:
    guesses = new_predictions(core)
    guesses.remember(packed(range(64)), "m", A, 0.0)
    guesses.remember(packed(range(64)), "m", B, 0.0)
    guesses.forget(A)
    assert guesses.holders(packed(range(64)), "m", 0.0) == [Guess(end, [B]) for end in (64, 48, 32, 16)]
    assert len(guesses) == 4


def test_each_worker_is_named_with_its_longest_prefix(core: ModuleType | None) -> None:
    guesses = new_predictions(core)
    guesses.remember(packed(range(16)), "m", A, 0.0)
    guesses.remember(packed(range(32)), "m", B, 0.0)
    assert list(guesses.longest(packed(range(100)), "m", 0.0).items()) == [(B, 32), (A, 16)]


def test_a_prefix_that_was_forgotten_and_sent_again_is_guessed_again(core: ModuleType | None) -> None:
    guesses = new_predictions(core)
    for sent in (A, B):
        guesses.remember(packed(range(16)), "m", sent, 0.0)
        guesses.forget(sent)
        guesses.forget(sent)
    guesses.remember(packed(range(16)), "m", B, 1.0)
    guesses.remember(packed(range(16)), "m", A, 1.0)
    assert guesses.holders(packed(range(16)), "m", 2.5) == [Guess(16, [B, A])]


@need_native
@settings(deadline=None)
@given(st.integers(0, 1 << 32))
def test_both_cores_guess_alike(seed: int) -> None:
    dice, now = Random(seed), 0.0
    both = [new_predictions(core, 2.0, 40, 12) for core in (None, native_module())]
    prompts = [packed([*range(shared), *range(1000 + shared, 1300)]) for shared in (0, 8, 16, 40, 100, 300)]
    workers = [worker(name) for name in "abcd"]
    for _ in range(60):
        now += dice.choice([0.0, 0.0, 0.1, 1.0, -0.5])
        prompt, area, sent = dice.choice(prompts), dice.choice("mn"), dice.choice(workers)
        deed = dice.random()
        for one in both:
            if deed < 0.5:
                one.remember(prompt, area, sent, now)
            elif deed < 0.55:
                one.forget(sent)
        python, native = both
        assert len(python) == len(native)
        assert python.holders(prompt, area, now) == native.holders(prompt, area, now)
        assert list(python.longest(prompt, area, now).items()) == list(native.longest(prompt, area, now).items())
