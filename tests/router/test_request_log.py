"""The log of requests: the same in both cores."""

from __future__ import annotations

import sys
from math import inf
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.worker import Worker
from router.assignment_book import new_book
from router.request_log import request_log
from router.settings import RouterSettings
from tests.router.builders import worker
from tests.support.cores import native_module, need_native

SETTINGS = RouterSettings(request_limit=4, request_ttl_s=9.0, assignment_ttl_s=6.0, prefill_ttl_s=3.0)
A, B = worker("a"), worker("b")


class Sent:
    """A log and the books of two workers, in one core."""

    def __init__(self, core: ModuleType | None, settings: RouterSettings = SETTINGS) -> None:
        self.log: Any = request_log(settings, core)
        self.books: dict[Worker, Any] = {one: new_book(settings, core) for one in (A, B)}

    def add(
        self, request_id: str, to: Worker, at: float, prompt: int = 8, reusable: int = 2, note: object = None
    ) -> Any:
        """A request is sent; the workers of those that gave way."""
        return list(self.log.add(request_id, to, self.books[to], at, 2.0, prompt, reusable, note))


def test_what_gave_way_is_told_with_its_worker(core: ModuleType | None) -> None:
    sent = Sent(core)
    assert [sent.add(name, B if name == "2" else A, 0.0) for name in "1234"] == [[]] * 4
    assert list(sent.log.end("1")) == [A]
    assert list(sent.log.end("1")) == []
    assert sent.add("5", A, 0.0) == []  # the first had ended
    assert sent.add("6", A, 0.0) == [B]
    assert (len(sent.log), sent.log.end("2")) == (4, None)


def test_an_id_used_again_ends_the_request_before(core: ModuleType | None) -> None:
    sent = Sent(core)
    for name in "123":
        sent.add(name, A, 1.0)
    assert sent.add("1", B, 2.0) == [A]
    assert (len(sent.log), sent.log.oldest_at) == (3, 1.0)
    assert list(sent.log.end_prefill("1")) == [B]
    assert list(sent.log.expire(10.0)) == [A, A]
    assert (len(sent.log), sent.log.oldest_at) == (1, 2.0)
    assert list(sent.log.expire(11.0)) == [B]
    assert sent.log.oldest_at == inf


def test_a_note_is_taken_once(core: ModuleType | None) -> None:
    sent, note = Sent(core), object()
    sent.add("1", A, 0.0, note=note)
    assert sent.log.take_note("2") is None
    assert sent.log.take_note("1") is note
    assert sent.log.take_note("1") is None


def test_what_is_dropped_is_not_kept_alive(core: ModuleType | None) -> None:
    note = object()
    before = sys.getrefcount(note)
    sent = Sent(core)
    for number in range(20):
        sent.add(str(number), A, 0.0, note=note)
    assert sys.getrefcount(note) == before + 4
    sent.log.expire(9.0)
    assert sys.getrefcount(note) == before


def test_an_id_is_text_of_some_length(core: ModuleType | None) -> None:
    sent = Sent(core)
    assert sent.add("é" * 15 + "x", A, 0.0) == []
    with pytest.raises(ValueError, match="31 bytes"):
        sent.add("é" * 16, A, 0.0)
    with pytest.raises(ValueError):  # noqa: PT011 - each core has its own words
        sent.add("\ud800", A, 0.0)
    for unknown in ("é" * 16, "x" * 10_000, "", "\ud800"):
        assert sent.log.end(unknown) is None
        assert sent.log.end_prefill(unknown) is None
        assert sent.log.take_note(unknown) is None
    assert len(sent.log) == 1


def test_ids_with_zeros_at_their_end_are_others(core: ModuleType | None) -> None:
    sent = Sent(core)
    for name in ("1", "1\0", "1\0\0"):
        sent.add(name, A, 0.0)
    assert len(sent.log) == 3


DEEDS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "end", "end_prefill", "expire", "take_note"]),
        st.sampled_from("abcdef"),
        st.sampled_from([A, B]),
        st.sampled_from([0.0, 0.5, 2.0, 8.9, 9.0]),
        st.integers(0, 70),
        st.integers(0, 70),
    ),
    max_size=60,
)


@need_native
@given(DEEDS)
def test_both_cores_do_the_same(deeds: list[tuple[str, str, Worker, float, int, int]]) -> None:
    both = [Sent(core) for core in (None, native_module())]
    now = 100.0
    for number, (deed, name, to, later, prompt, reusable) in enumerate(deeds):
        now += later
        if deed == "add":
            said = [sent.add(name, to, now, prompt, min(reusable, prompt), number) for sent in both]
        elif deed == "expire":
            said = [list(sent.log.expire(now)) for sent in both]
        else:
            answers = [getattr(sent.log, deed)(name) for sent in both]
            said = [
                list(answer) if isinstance(answer, list | tuple) and deed != "take_note" else answer
                for answer in answers
            ]
        assert said[0] == said[1]
        python, native = (
            (len(sent.log), sent.log.oldest_at, [tuple(book.seen(now, now - 5)) for book in sent.books.values()])
            for sent in both
        )
        assert python == native
