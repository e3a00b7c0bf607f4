"""Guesses: shared prefixes are found, bounded in time, number and work."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from router.predictions import Guess, Predictions
from tests.router.builders import worker

A, B = worker("a"), worker("b")
BOUNDARIES = [*range(16, 257, 16), *range(320, 1025, 64), *range(1280, 10241, 256)]


def packed(tokens: Iterable[int]) -> bytes:
    return array("I", tokens).tobytes()


def new_predictions(ttl_s: float = 2.0, limit: int = 10_000, boundaries: int = 64) -> Predictions:
    return Predictions(ttl_s, limit, boundaries)


@given(st.integers(0, 3000), st.integers(0, 3000))
def test_a_shared_prefix_is_found_at_every_boundary_it_reaches(shared: int, rest: int) -> None:
    predictions = new_predictions()
    predictions.remember(packed([*range(shared), *range(10_000, 10_000 + rest)]), "m", A, 0.0)
    found = predictions.holders(packed([*range(shared), *range(50_000, 50_500)]), "m", 1.0)
    assert found == [Guess(end, [A]) for end in reversed(BOUNDARIES) if end <= shared]


def test_the_longest_prefix_comes_first() -> None:
    predictions = new_predictions()
    predictions.remember(packed(range(16)), "m", A, 0.0)
    predictions.remember(packed(range(32)), "m", B, 0.0)
    assert predictions.holders(packed(range(100)), "m", 0.0) == [Guess(32, [B]), Guess(16, [A, B])]


def test_a_longer_guess_is_found_when_the_shorter_one_has_expired() -> None:
    predictions = new_predictions()
    predictions.remember(packed(range(16)), "m", A, 0.0)
    predictions.remember(packed(range(32)), "m", A, 1.0)
    assert predictions.holders(packed(range(100)), "m", 2.5) == [Guess(32, [A])]


def test_namespaces_are_apart() -> None:
    predictions = new_predictions()
    predictions.remember(packed(range(64)), "m", A, 0.0)
    assert predictions.holders(packed(range(64)), "other", 0.0) == []


def test_guesses_expire_and_a_lifetime_of_zero_makes_none() -> None:
    predictions = new_predictions()
    predictions.remember(packed(range(64)), "m", A, 0.0)
    assert predictions.holders(packed(range(64)), "m", 2.0) == []
    assert len(predictions) == 0
    never = new_predictions(ttl_s=0)
    never.remember(packed(range(64)), "m", A, 0.0)
    assert len(never) == 0


def test_work_and_memory_are_bounded() -> None:
    predictions = new_predictions(limit=100)
    predictions.remember(packed(range(1_000_000)), "m", A, 0.0)
    assert len(predictions) == 64
    predictions.remember(packed(range(5, 1_000_000)), "m", A, 0.0)
    assert len(predictions) == 100


def test_forgetting_a_worker_keeps_the_others() -> None:
    predictions = new_predictions()
    predictions.remember(packed(range(64)), "m", A, 0.0)
    predictions.remember(packed(range(64)), "m", B, 0.0)
    predictions.forget(A)
    assert predictions.holders(packed(range(64)), "m", 0.0) == [Guess(end, [B]) for end in (64, 48, 32, 16)]
    assert len(predictions) == 4
