"""Sessions: remembered per namespace, bounded, sliding expiry."""

from __future__ import annotations

from router.affinity import SessionAffinity
from tests.router.builders import worker

A, B = worker("a"), worker("b")


def test_a_session_is_remembered_until_it_is_idle_too_long() -> None:
    sessions = SessionAffinity(ttl_s=10, limit=100)
    sessions.remember("m", "s", A, 0.0)
    sessions.remember("m", "s", B, 5.0)
    assert sessions.worker("m", "s", 14.9) == B
    assert sessions.worker("m", "s", 15.0) is None
    assert sessions.worker("m", "other", 5.0) is None
    assert sessions.worker("other", "s", 5.0) is None


def test_the_longest_unused_sessions_give_way() -> None:
    sessions = SessionAffinity(ttl_s=10, limit=2)
    for name in ("1", "2", "1", "3"):
        sessions.remember("m", name, A, 0.0)
    assert [sessions.worker("m", name, 1.0) for name in "123"] == [A, None, A]
    assert len(sessions) == 2


def test_expired_sessions_take_no_room() -> None:
    sessions = SessionAffinity(ttl_s=10, limit=100)
    for number in range(50):
        sessions.remember("m", str(number), A, 0.0)
    sessions.remember("m", "new", A, 10.0)
    assert len(sessions) == 1


def test_a_removed_worker_has_no_sessions() -> None:
    sessions = SessionAffinity(ttl_s=10, limit=100)
    sessions.remember("m", "1", A, 0.0)
    sessions.remember("m", "2", B, 0.0)
    sessions.forget(A)
    assert [sessions.worker("m", name, 1.0) for name in "12"] == [None, B]


def test_any_text_is_a_session() -> None:
    sessions = SessionAffinity(ttl_s=10, limit=100)
    sessions.remember("m\ud800", "\udfff" * 10_000, A, 0.0)
    assert sessions.worker("m\ud800", "\udfff" * 10_000, 1.0) == A
