"""One worker's requests: the same numbers in both cores, to the last bit."""

from __future__ import annotations

from math import inf
from random import Random
from types import ModuleType

from hypothesis import given, settings
from hypothesis import strategies as st

from router.assignment_book import NOTHING, Seen, new_book
from router.settings import RouterSettings
from tests.support.cores import native_module, need_native

QUICK = RouterSettings(assignment_ttl_s=6, prefill_ttl_s=4, spread_half_life_s=5)


def test_a_new_book_has_seen_nothing(core: ModuleType | None) -> None:
    book = new_book(QUICK, core)
    assert (Seen(*book.seen(1.0, 0.0)), book.share, book.last, book.faded(2.0)) == (NOTHING, 0.0, -inf, 0.0)


def test_requests_are_counted_until_they_are_ended_or_old(core: ModuleType | None) -> None:
    book = new_book(QUICK, core)
    numbers = [book.add(at, 0.5, 100, 1.0) for at in (1.0, 2.0, 3.0)]
    assert numbers == [0, 1, 2]
    assert Seen(*book.seen(3.0, 2.0)) == (1.0, 3, 300, 1.0, 2.0, 1.0)
    assert book.end_prefill(0)
    assert not book.end_prefill(0)
    assert book.end(1)
    assert not book.end(1)
    assert Seen(*book.seen(3.0, 2.0)) == (0.5, 2, 100, 1.0, 3.0, 3.0)
    assert Seen(*book.seen(7.0, 2.0)) == (0.5, 1, 0, 3.0, 3.0, inf)
    assert Seen(*book.seen(9.0, 2.0)) == NOTHING
    assert not book.end(0)
    assert not book.end(2)


def test_new_ones_are_counted_again_where_the_time_goes_back(core: ModuleType | None) -> None:
    book = new_book(QUICK, core)
    for at in (1.0, 2.0, 3.0):
        book.add(at, 0.25, 10, 1.0)
    assert Seen(*book.seen(3.0, 3.0)).cost == 0.25
    assert Seen(*book.seen(3.0, 1.5)).cost == 0.5
    assert Seen(*book.seen(3.0, inf)).cost == 0
    book.add(3.5, 0.25, 10, 1.0)
    assert Seen(*book.seen(3.5, 0.0)).cost == 1.0


@need_native
@settings(max_examples=300)
@given(st.integers(0, 1 << 32))
def test_both_cores_keep_the_same_book(seed: int) -> None:
    dice, now, added = Random(seed), 100.0, 0
    python, native = new_book(QUICK, None), new_book(QUICK, native_module())
    for _ in range(60):
        now += dice.choice([0.0, 0.0, 0.1, 0.5, 2.0])
        deed, cost, prefill, one = dice.random(), dice.choice([0.25, 0.5, 1.0]), dice.randint(0, 99), dice.random()
        number, since = dice.randrange(added + 2), now - dice.choice([0.0, 0.5, 2.0, 7.0, -inf])
        for book in (python, native):
            if deed < 0.5:
                assert book.add(now, cost, prefill, one) == added
        added += deed < 0.5
        number = min(number, max(added - 1, 0))
        if added and deed < 0.7:
            assert python.end(number) == native.end(number)
        elif added and deed < 0.8:
            assert python.end_prefill(number) == native.end_prefill(number)
        elif deed < 0.95:
            assert python.seen(now, since) == native.seen(now, since)
        assert python.prefill_tokens(now) == native.prefill_tokens(now)
        assert (python.share, python.last, python.faded(now)) == (native.share, native.last, native.faded(now))
