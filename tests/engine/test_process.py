from __future__ import annotations

import pytest
from xxhash import xxh3_64_digest

from engine.stream import ListenerLimits, Position
from index.worker import Trust
from tests.engine.sequence_words import EXACT, LIMITS, PARTIAL, Stream, payload, reconnected, started

DIGEST = xxh3_64_digest(payload(4))

# The fingerprint


def test_the_same_process_after_a_reconnect_closes_the_hole() -> None:
    stream = started(0, 1)
    reconnected(stream, "p")
    assert stream.asked() == 2
    stream.answer(2, 3)
    assert stream.said() == ["down", "up", "2r", "3r"]


@pytest.mark.parametrize("fingerprint", ["q", None])
def test_another_process_after_a_reconnect_is_replayed_from_0(fingerprint: str | None) -> None:
    stream = started(0, 1)
    reconnected(stream, fingerprint)
    if fingerprint is None:
        stream.answer(*range(1, 7), process="q")
    assert stream.asked() == 0
    stream.live(6, process="q")
    stream.answer(*range(7), process="q")
    why = "reconnect" if fingerprint is None else "restart"
    assert stream.said() == ["down", "up", f"{why}:exact", *(f"{n}r" for n in range(6)), "6"]


def test_nothing_is_asked_while_the_link_is_down() -> None:
    stream = started(0)
    stream.live(2)
    assert stream.asked() == 1
    stream.sequence.link_down()
    stream.wait(3600)
    assert stream.asked() is None
    assert stream.sequence.deadline() is None


def test_live_batches_wait_for_the_verdict() -> None:
    stream = started(0, 1)
    stream.sequence.link_down()
    stream.live(0, process="q")
    stream.sequence.link_up(stream.now)
    stream.live(1, process="q")
    assert stream.said() == ["down", "up"]
    stream.tell("q")
    assert stream.said() == ["restart:exact", "0", "1"]


def test_a_verdict_that_does_not_come_is_unknown() -> None:
    stream = started(0, 1)
    stream.sequence.link_down()
    stream.sequence.link_up(stream.now)
    stream.live(0, process="q")
    stream.wait(LIMITS.fingerprint_s)
    assert stream.asked() == 1
    stream.wait(LIMITS.first_answer_s)
    assert stream.said() == ["down", "up", "reconnect:exact", "0"]


def test_a_new_process_that_published_nothing_leaves_no_dead_blocks() -> None:
    stream = started(0, 1)
    reconnected(stream, "q")
    stream.answer()
    assert stream.said() == ["down", "up", "restart:exact"]
    stream.live(0, process="q")
    assert stream.said() == ["0"]


def test_an_unanswered_replay_after_a_reconnect_leaves_no_dead_blocks() -> None:
    stream = started(0, 1)
    reconnected(stream, None)
    stream.wait(5)
    assert stream.said() == ["down", "up", "reconnect:partial"]
    stream.live(0, process="q")
    assert stream.said() == ["start:exact", "0"]


def test_a_replay_that_takes_long_does_not_keep_a_former_process_alive() -> None:
    stream = started(0, 1)
    reconnected(stream, "q")
    stream.wait(LIMITS.settle_s)
    assert stream.said() == ["down", "up", "restart:partial"]
    stream.answer(0, process="q")
    assert stream.said() == ["start:exact", "0r"]


def test_where_no_answer_could_prove_the_process_nothing_waits_for_one() -> None:
    stream = Stream(replay=False, connected=False)
    stream.connect(None)
    stream.live(0, 1)
    stream.sequence.link_down()
    stream.sequence.link_up(stream.now)
    stream.live(2)
    assert stream.said() == ["up", "start:exact", "0", "1", "down", "up", "reconnect:partial", "2"]


def test_without_replay_an_unknown_process_is_cleared_soon() -> None:
    stream = started(0, 1, replay=False)
    reconnected(stream, None)
    stream.wait(LIMITS.settle_s)
    assert stream.said() == ["down", "up", "reconnect:partial"]
    stream.live(4, 5, process="q")
    assert stream.said() == ["4", "5"]


def test_without_replay_the_first_batch_of_a_new_process_makes_it_exact() -> None:
    stream = started(0, 1, replay=False)
    stream.sequence.link_down()
    stream.sequence.link_up(stream.now)
    stream.live(0, process="q")
    stream.tell(None)
    assert stream.said() == ["down", "up", "reconnect:exact", "0"]


def test_a_verdict_of_a_former_connection_does_not_count() -> None:
    stream = started(0)
    stream.sequence.link_down()
    stream.sequence.link_up(stream.now)
    stale = stream.sequence.inquiry
    assert stale is not None
    stream.sequence.link_down()
    stream.sequence.link_up(stream.now)
    stream.sequence.verdict(stale, "p", stream.now)
    stream.tell("q")
    stream.answer(0, process="q")
    assert stream.said() == ["down", "up", "down", "up", "restart:exact", "0r"]


def test_batches_of_a_connection_that_broke_before_its_verdict_are_not_mixed_in() -> None:
    stream = started(0, 1, replay=False)
    stream.sequence.link_down()
    stream.sequence.link_up(stream.now)
    stream.live(0, 1, process="q")
    stream.sequence.link_down()
    stream.sequence.link_up(stream.now)
    stream.live(2, process="r")
    stream.tell("r")
    assert stream.said() == ["down", "up", "down", "up", "restart:partial", "2"]


def test_too_much_to_hold_back_for_a_verdict_counts_as_unknown() -> None:
    stream = Stream(limits=ListenerLimits(held_batches=3))
    stream.live(0)
    stream.sequence.link_down()
    stream.sequence.link_up(stream.now)
    stream.said()
    stream.live(0, 1, 2, process="q")
    assert stream.said() == ["reconnect:exact", "0", "1", "2"]


# The last applied batch as proof


def in_doubt(*, known: str | None = "p", told: str | None = None) -> Stream:
    """Batches 0 to 4 were applied, the connection was lost and made again; nobody could tell which process it is."""
    stream = Stream(connected=False)
    stream.connect(known)
    stream.live(0, 1, 2, 3, 4)
    stream.answer()
    reconnected(stream, told)
    assert stream.said() == ["up", "start:exact", "0", "1", "2", "3", "4", "down", "up"]
    return stream


@pytest.mark.parametrize(("known", "told"), [("p", None), (None, None), (None, "p")])
def test_the_last_batch_proves_the_process_and_its_answer_closes_the_hole(known: str | None, told: str | None) -> None:
    stream = in_doubt(known=known, told=told)
    assert stream.asked() == 4
    stream.live(7)
    stream.answer(4, marker=False)
    first = stream.sequence.ask
    assert stream.said() == ["gap 2"]
    stream.answer(5, 6, 7)
    assert stream.said() == ["5r", "6r", "7"]
    assert first is not None
    assert first.start == 4
    assert stream.sequence.position == Position(8, told or known, xxh3_64_digest(payload(7)), EXACT)


def test_a_batch_set_aside_in_its_turn_needs_no_more_than_the_proof() -> None:
    stream = in_doubt()
    stream.live(5, 6)
    stream.answer(4, marker=False)
    assert stream.said() == ["5", "6"]
    stream.answer(5, 6)
    stream.live(7)
    assert stream.said() == ["7"]


@pytest.mark.parametrize(
    ("answer", "process"),
    [((4, 5), "q"), ((5, 6), "p"), ((3, 4), "p"), ((), "p")],
    ids=["other content", "gone from the buffer", "not what was asked for", "only the end marker"],
)
def test_without_the_last_batch_the_worker_is_cleared_and_replayed_from_0(
    answer: tuple[int, ...], process: str
) -> None:
    stream = in_doubt()
    stream.answer(*answer, marker=not answer, process=process)
    assert stream.said() == []
    assert stream.asked() == 0
    stream.answer(0, 1, process="q")
    assert stream.said() == ["reconnect:exact", "0r", "1r"]


def test_a_proof_that_does_not_come_in_time_is_none() -> None:
    stream = in_doubt()
    stream.live(0, process="q")
    stream.wait(LIMITS.first_answer_s - 0.1)
    assert stream.said() == []
    stream.wait(0.1)
    assert stream.said() == ["reconnect:exact", "0"]


def test_the_silence_of_a_proof_counts_as_one_of_the_asks_that_get_no_answer() -> None:
    stream = in_doubt()
    stream.live(9, process="q")
    stream.wait(LIMITS.fruitless_asks * LIMITS.first_answer_s)
    assert stream.said() == ["reconnect:partial", "9"]


def test_where_no_fingerprint_was_known_the_proof_does_not_wait_for_one() -> None:
    stream = Stream(connected=False)
    stream.connect(None)
    stream.live(0, 1)
    stream.sequence.link_down()
    stream.sequence.link_up(stream.now)
    assert stream.asked() == 1
    stream.answer(1, 2)
    assert stream.said() == ["up", "start:exact", "0", "1", "down", "up", "2r"]
    stream.tell("p")
    reconnected(stream, "p")
    assert stream.asked() == 3


def test_a_fingerprint_told_in_a_doubt_that_was_never_settled_is_not_of_the_process_held() -> None:
    stream = in_doubt(known=None, told="q")
    reconnected(stream, "q")
    assert stream.said() == ["down", "up"]
    stream.answer(4, process="q")
    stream.answer(0, process="q")
    assert stream.said() == ["reconnect:exact", "0r"]


def test_a_fingerprint_told_on_a_connection_that_broke_is_not_of_the_process_proved_on_the_next() -> None:
    stream = in_doubt(known=None, told="q")
    stream.sequence.link_down()
    stream.sequence.link_up(stream.now)
    stream.answer(4)
    stream.said()
    assert stream.sequence.position == Position(5, None, DIGEST, EXACT)


def test_after_a_refused_proof_the_new_process_may_tell_its_fingerprint_later() -> None:
    stream = in_doubt(known="p", told=None)
    stream.answer(4, 5, process="q")
    stream.answer(0, process="q")
    stream.wait(LIMITS.settle_s)
    stream.tell("q")
    assert stream.said() == ["reconnect:exact", "0r"]


def test_a_known_fingerprint_outlives_a_doubt_that_the_proof_settled() -> None:
    stream = in_doubt(known="p", told=None)
    stream.answer(4)
    reconnected(stream, "p")
    assert stream.asked() == 5


def test_batches_of_a_new_process_set_aside_before_a_proof_of_the_former_one_are_a_restart() -> None:
    stream = in_doubt()
    stream.live(0, process="q")
    stream.answer(4, marker=False)
    assert stream.said() == ["restart:exact", "0"]


def test_with_an_equal_fingerprint_the_next_live_batch_is_immediate() -> None:
    stream = started(0, 1)
    reconnected(stream, "p")
    stream.live(2)
    assert stream.said() == ["down", "up", "2"]


def test_too_much_to_hold_back_for_a_proof_clears() -> None:
    stream = Stream(limits=ListenerLimits(held_batches=3))
    stream.live(0)
    reconnected(stream, None)
    stream.said()
    stream.live(0, 1, 2, process="q")
    assert stream.said() == ["reconnect:exact", "0", "1", "2"]


def test_a_hole_that_was_open_when_the_connection_was_lost_is_closed_after_the_proof() -> None:
    stream = started(0)
    stream.live(3)
    reconnected(stream, None)
    assert stream.asked() == 0
    stream.answer(0, 1, 2, 3)
    assert stream.said() == ["gap 2", "down", "up", "1r", "2r", "3"]


def test_a_gap_behind_a_proxy_is_checked_for_a_restart_that_no_disconnect_showed() -> None:
    stream = started(0, 1)
    stream.live(6, process="q")
    stream.answer(*range(2, 7), process="q")
    stream.tell("q")
    assert stream.asked() == 0
    stream.answer(*range(7), process="q")
    assert stream.said()[-8:] == ["restart:exact", *(f"{n}r" for n in range(7))]


# Resuming


@pytest.mark.parametrize("replay", [True, False])
@pytest.mark.parametrize(
    ("shown", "process"), [((4, 5), "p"), ((4, 5), "q"), ((5,), "p")], ids=["equal", "different", "missing"]
)
@pytest.mark.parametrize("digest", [DIGEST, None, b"", b"other8by"])
@pytest.mark.parametrize("trust", [EXACT, PARTIAL])
@pytest.mark.parametrize(
    ("known", "told"), [("p", "p"), ("p", "q"), ("p", None), (None, "p"), (None, None)], ids=lambda f: f or "unknown"
)
def test_a_position_is_resumed_when_fingerprint_or_digest_prove_the_process(
    known: str | None,
    told: str | None,
    digest: bytes | None,
    shown: tuple[int, ...],
    process: str,
    replay: bool,
    trust: Trust,
) -> None:
    stream = Stream(replay, resume=Position(5, known, digest, trust), connected=False)
    stream.connect(told)
    stream.live(5)
    why = "reconnect" if None in (known, told) or known == told else "restart"
    looked = None in (known, told) and replay and digest is not None and len(digest) == 8
    if looked:
        assert stream.asked() == 4
        stream.answer(*shown, process=process)
    if known == told == "p" or (looked and digest == DIGEST and shown[0] == 4 and process == "p"):
        assert stream.said() == ["up", "resumed", "5"]
        assert stream.sequence.position == Position(6, told or known, xxh3_64_digest(payload(5)), trust)
    elif replay:
        stream.answer(0, 1)
        assert stream.said()[:4] == ["up", f"{why}:exact", "0r", "1r"]
    else:
        assert stream.said() == ["up", f"{why}:partial", "5"]


def test_a_position_can_be_resumed_again_before_anything_new_came() -> None:
    position = Position(5, "p", DIGEST, EXACT)
    stream = Stream(resume=position, connected=False)
    assert stream.sequence.position == position
    stream.connect()
    assert stream.said() == ["up", "resumed"]
    assert stream.sequence.position == position


def test_a_connection_lost_before_the_verdict_leaves_the_resumed_position_in_doubt() -> None:
    stream = Stream(resume=Position(5, None, DIGEST, EXACT), connected=False)
    stream.sequence.link_up(stream.now)
    assert stream.asked() == 4
    reconnected(stream, None)
    stream.answer(4, 5)
    assert stream.said() == ["up", "down", "up", "resumed", "5r"]


def test_resumed_is_said_once() -> None:
    stream = Stream(resume=Position(5, "p", DIGEST, EXACT))
    reconnected(stream, "p")
    assert stream.said() == ["up", "resumed", "down", "up"]


def test_a_position_with_nothing_applied_is_proved_by_its_fingerprint_only() -> None:
    stream = Stream(resume=Position(0, "p", b"8 bytes.", EXACT))
    stream.live(0)
    assert stream.said() == ["up", "resumed", "0"]
    stream = Stream(resume=Position(0, None, b"8 bytes.", EXACT))
    stream.live(0)
    assert stream.said() == ["up", "reconnect:exact", "0"]


def test_the_position_is_of_what_was_taken() -> None:
    stream = started(0, 1)
    assert stream.sequence.position == Position(2, "p", xxh3_64_digest(payload(1)), EXACT)
    stream.live(2)
    assert stream.sequence.position == Position(2, "p", xxh3_64_digest(payload(1)), EXACT)
    stream.said()
    assert stream.sequence.position == Position(3, "p", xxh3_64_digest(payload(2)), EXACT)
    stream.sequence.resync("orphans", stream.now)
    stream.said()
    assert stream.sequence.position is None
