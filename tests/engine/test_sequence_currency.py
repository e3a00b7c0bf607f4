"""When what is held counts: not from the moment a process is in doubt, and not before what was missed has come."""

from __future__ import annotations

from tests.engine.sequence_words import Stream, started


def test_a_first_contact_is_current_when_the_replay_after_the_settled_subscription_has_ended() -> None:
    stream = Stream()
    stream.sequence.link_up(stream.now)
    assert stream.said_of_currency() == ["up"]
    stream.answer(0, 1, 2)
    assert stream.said_of_currency() == ["start:exact", "0r", "1r", "2r", "current as far as known"]
    stream.wait(0.5)
    stream.answer()
    assert stream.said_of_currency() == ["current"]


def test_a_batch_that_comes_in_its_turn_shows_that_nothing_is_missing() -> None:
    stream = Stream()
    stream.sequence.link_up(stream.now)
    stream.live(0)
    assert stream.said_of_currency() == ["up", "start:exact", "0", "current"]
    stream.live(1)
    assert stream.said_of_currency() == ["1"]


def test_a_hole_is_not_current_until_it_is_filled() -> None:
    stream = started(0)
    stream.live(3)
    assert stream.said_of_currency() == ["gap 2"]
    stream.answer(1, 2)
    assert stream.said_of_currency() == ["1r", "2r", "3", "current"]


def test_what_a_replaced_process_held_is_stale_at_once() -> None:
    stream = started(0, 1, 2)
    stream.sequence.told_process("another", stream.now)
    told = stream.said_of_currency()
    if not told:  # the former one was not known
        stream.live(0, process="q")
        told = stream.said_of_currency()
    assert told[0] == "stale"


def test_after_a_lost_link_nothing_is_current_before_the_process_is_proven_and_its_replay_ended() -> None:
    stream = started(0, 1)
    stream.sequence.link_down()
    stream.sequence.link_up(stream.now)
    assert "current" not in stream.said_of_currency()
    stream.tell(None)
    while stream.sequence.ask is not None and stream.asked() == 1:
        stream.answer(1)
    assert "current" not in stream.said_of_currency()
    stream.wait(0.5)
    stream.answer()
    assert stream.said_of_currency()[-1] == "current"


def test_an_answer_that_never_comes_ends_the_wait_without_certainty() -> None:
    stream = Stream()
    stream.sequence.link_up(stream.now)
    stream.said_of_currency()
    stream.wait(20.0)
    told = stream.said_of_currency()
    assert "current as far as known" in told
    assert "current" not in told


def test_without_replay_a_first_contact_holds_nothing_that_could_be_missing() -> None:
    stream = Stream(replay=False)
    stream.sequence.link_up(stream.now)
    assert stream.said_of_currency() == ["up", "current"]
