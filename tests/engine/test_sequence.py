from __future__ import annotations

import pytest

from engine.stream import ListenerLimits
from tests.engine.sequence_words import LIMITS, Stream, payload, started

# First contact


def test_a_first_live_batch_0_is_not_kept_waiting_for_the_replay() -> None:
    stream = Stream()
    assert stream.asked() == 0
    stream.live(0)
    assert stream.said() == ["up", "start:exact", "0"]


def test_replay_and_live_overlap_is_delivered_once() -> None:
    stream = Stream()
    stream.live(3, 4)
    stream.answer(0, 1, 2, 3, 4, 5)
    stream.live(5, 6)
    assert stream.said() == ["up", "start:exact", "0r", "1r", "2r", "3", "4", "5r", "6"]
    stream.live(7)
    stream.wait(LIMITS.idle_s)
    stream.answer(7)
    assert stream.said() == ["7"]


def test_late_contact_goes_on_from_what_the_buffer_holds() -> None:
    stream = Stream()
    stream.live(9)
    stream.answer(7, 8, 9)
    assert stream.said() == ["up", "start:partial", "7r", "8r", "9"]
    assert stream.asked() is None


def test_an_unanswered_first_replay_does_not_hold_the_stream_for_ever() -> None:
    stream = Stream()
    stream.live(9, 10)
    assert stream.said() == ["up"]
    stream.wait(LIMITS.fruitless_asks * LIMITS.first_answer_s + 1)
    assert stream.said() == ["start:partial", "9", "10"]


def test_without_a_replay_endpoint_the_first_batch_is_delivered_at_once() -> None:
    stream = Stream(replay=False)
    stream.live(9)
    assert stream.said() == ["up", "start:partial", "9"]


def test_batches_before_the_handshake_is_reported_count() -> None:
    stream = Stream(connected=False)
    stream.live(0, 1)
    stream.connect()
    assert stream.said() == ["start:exact", "0", "1", "up"]


def test_an_empty_replay_at_first_contact_proves_that_nothing_was_missed() -> None:
    stream = Stream()
    stream.answer()
    assert stream.said() == ["up", "start:exact"]
    stream.live(0)
    assert stream.said() == ["0"]


def test_the_handshake_hole_is_asked_for_again() -> None:
    stream = Stream()
    stream.answer(0)
    assert stream.asked() is None
    stream.wait(LIMITS.settle_s)
    assert stream.asked() == 1
    stream.answer(1)
    assert stream.said() == ["up", "start:exact", "0r", "1r"]


def test_after_a_live_batch_there_is_no_handshake_hole_to_ask_for() -> None:
    stream = Stream()
    stream.live(0)
    stream.answer()
    stream.wait(LIMITS.settle_s)
    assert stream.asked() is None
    stream.live(2)
    assert stream.asked() == 1


def test_a_silent_stream_is_probed_less_and_less() -> None:
    stream = started(0)
    waits = []
    for _ in range(5):
        begin = stream.now
        while stream.asked() is None:
            stream.wait(0.5)
        assert stream.asked() == 1
        waits.append(stream.now - begin)
        stream.answer()
    assert waits == pytest.approx([5, 10, 20, 30, 30], abs=1)
    assert stream.said() == []


def test_a_dropped_tail_is_found_by_the_probe() -> None:
    stream = started(0)
    stream.live(1)
    stream.wait(LIMITS.idle_s)
    stream.answer(2, 3)
    assert stream.said() == ["1", "2r", "3r"]


# Gaps


def test_a_gap_is_filled_before_the_batch_that_showed_it() -> None:
    stream = started(0)
    stream.live(3, 4)
    assert stream.asked() == 1
    stream.answer(1, 2, 3, 4)
    assert stream.said() == ["gap 2", "1r", "2r", "3", "4"]


def test_a_gap_does_not_wait_for_an_older_request_that_nobody_answers() -> None:
    stream = Stream()
    stream.live(0, 2)
    assert stream.asked() == 1
    stream.live(3)
    stream.answer(1, marker=False)
    stream.live(5)
    assert stream.asked() == 1, "an answer that has begun goes on"
    assert stream.said() == ["up", "start:exact", "0", "gap 1", "1r", "2", "3", "gap 1"]


def test_a_hole_inside_an_answer_is_asked_for_while_there_is_progress() -> None:
    stream = started(0)
    stream.live(6)
    stream.answer(1, 2, 5, 6)
    assert stream.said() == ["gap 5", "1r", "2r"]
    stream.wait(0)
    assert stream.asked() == 3
    stream.answer(3, 5)
    stream.wait(0)
    assert stream.asked() == 4
    stream.answer(4, 5, 6)
    assert stream.said() == ["3r", "4r", "5r", "6"]


def test_a_hole_at_the_head_of_a_repeated_answer_is_gone_for_good() -> None:
    stream = started(0)
    stream.live(4)
    stream.answer(2, 3, 4)
    assert stream.said() == ["gap 3"]
    stream.wait(1)
    stream.answer(2, 3, 4)
    assert stream.said() == ["gap:partial", "2r", "3r", "4"]
    stream.wait(1)
    assert stream.asked() is None


def test_without_replay_a_gap_clears_at_once() -> None:
    stream = started(0, replay=False)
    stream.live(2, 5)
    assert stream.said() == ["gap 1", "gap:partial", "2", "gap 2", "gap:partial", "5"]


def test_an_unanswered_gap_is_given_up_after_few_tries() -> None:
    stream = started(0)
    stream.live(2)
    stream.wait(LIMITS.fruitless_asks * LIMITS.first_answer_s + 1)
    assert stream.said() == ["gap 1", "gap:partial", "2"]


def test_a_lost_end_marker_ends_by_time_and_the_rest_is_asked_for() -> None:
    stream = Stream()
    stream.answer(0, 1, 2, marker=False)
    assert stream.said() == ["up", "start:exact", "0r", "1r", "2r"]
    stream.wait(LIMITS.next_answer_s)
    assert stream.asked() == 3
    stream.wait(LIMITS.first_answer_s + 0.5)
    assert stream.asked() is None


def test_slow_progress_is_not_a_timeout() -> None:
    stream = Stream()
    first = stream.sequence.ask
    for seq in range(5):
        stream.wait(1.1)
        stream.answer(seq, marker=False)
    assert stream.sequence.ask == first


def test_a_probe_under_way_does_not_count_as_a_try() -> None:
    stream = started(0)
    stream.live(1)
    stream.wait(LIMITS.idle_s)
    stream.live(3)
    stream.answer()
    for _ in range(LIMITS.fruitless_asks - 1):
        stream.wait(1)
        stream.answer()
    assert stream.said() == ["1", "gap 1"]
    stream.wait(1)
    stream.answer(2)
    assert stream.said() == ["2r", "3"]


def test_more_held_back_than_the_bound_is_a_lost_gap() -> None:
    stream = Stream(limits=ListenerLimits(held_batches=3))
    stream.live(0, 2, 3, 4)
    assert stream.said() == ["up", "start:exact", "0", "gap 1"]
    stream.live(5)
    assert stream.said() == ["gap:partial", "2", "3", "4", "5"]


def test_held_bytes_are_bounded_too() -> None:
    stream = Stream(limits=ListenerLimits(held_bytes=2 * len(payload(2))))
    stream.live(0, 2, 3)
    stream.said()
    stream.live(4)
    assert stream.said() == ["gap:partial", "2", "3", "4"]


def test_answers_of_an_abandoned_request_are_ignored() -> None:
    stream = started(0)
    stream.live(2)
    abandoned = stream.sequence.ask
    assert abandoned is not None
    stream.live(0, process="q")
    stream.sequence.replayed(abandoned.id, 1, payload(1), stream.now)
    stream.sequence.replay_end(abandoned.id, stream.now)
    assert stream.said() == ["gap 1", "restart:exact", "0"]


# Restarts


def test_a_repeated_batch_is_dropped() -> None:
    stream = started(0, 1, 2)
    stream.live(2, 1, 0, 3)
    assert stream.said() == ["3"]


def test_a_number_that_goes_back_is_a_new_process() -> None:
    stream = started(0, 1, 2)
    stream.live(0, 1, process="q")
    stream.tell("q")
    assert stream.said() == ["restart:exact", "0", "1"]
    assert stream.asked() is None


def test_a_new_process_met_late_is_replayed_from_0() -> None:
    stream = started(0, 1, 2)
    stream.live(1, process="q")
    assert stream.said() == []
    assert stream.asked() == 0
    stream.answer(0, 1, process="q")
    assert stream.said() == ["restart:exact", "0r", "1"]


def test_a_new_process_without_replay_is_partial() -> None:
    stream = started(0, 1, 2, replay=False)
    stream.live(1, 2, process="q")
    assert stream.said() == ["restart:partial", "1", "2"]


def test_held_batches_of_a_dead_process_are_not_mixed_in() -> None:
    stream = started(0)
    stream.live(2)
    stream.live(0, 1, 2, process="q")
    stream.wait(5)
    assert [s for s in stream.said() if s != "gap 1"] == ["restart:exact", "0", "1", "2"]


def test_engine_time_jumping_back_is_a_new_process() -> None:
    stream = started(0, 1)
    stream.sequence.live(2, payload(2, ts=900.0), stream.now)
    assert stream.asked() == 0
    stream.answer(0, 1, 2, process="q")
    assert stream.said() == ["restart:exact", "0r", "1r", "2"]
    stream.sequence.live(3, payload(3, ts=900.5), stream.now)
    assert stream.said() == ["3"]


def test_equal_and_slightly_earlier_engine_times_are_fine() -> None:
    stream = started()
    for seq, ts in enumerate([5.0, 5.0, 4.1, 3.2, 9.0]):
        stream.sequence.live(seq, payload(seq, ts=ts), stream.now)
    assert stream.said() == ["0", "1", "2", "3", "4"]


# Resync


def test_resync_replays_from_0_once() -> None:
    stream = started(0, 1)
    assert stream.sequence.resync("orphans", stream.now)
    assert stream.asked() == 0
    stream.answer(0, 1)
    assert stream.said() == ["orphans:exact", "0r", "1r"]
    stream.wait(3600)
    assert not stream.sequence.resync("orphans", stream.now)
    assert stream.sequence.resync_requests == {"orphans": 2}


def test_resync_is_refused_when_0_is_known_to_be_gone() -> None:
    stream = Stream()
    stream.answer(5, 6)
    assert not stream.sequence.resync("orphans", stream.now)


def test_resync_is_allowed_again_after_a_loss_but_not_at_once() -> None:
    stream = started(0)
    assert stream.sequence.resync("orphans", stream.now)
    stream.answer(0)
    stream.live(2)
    stream.wait(4)
    assert "gap:partial" in stream.said()
    assert not stream.sequence.resync("orphans", stream.now)
    stream.wait(LIMITS.resync_s)
    assert stream.sequence.resync("orphans", stream.now)


def test_a_restart_during_a_resync_is_seen() -> None:
    stream = started(0, 1)
    stream.sequence.resync("orphans", stream.now)
    stream.live(0, process="q")
    assert stream.said() == ["restart:exact", "0"]
    assert stream.asked() is None


def test_resync_without_replay_is_refused() -> None:
    stream = started(0, replay=False)
    assert not stream.sequence.resync("orphans", stream.now)


def test_an_endless_answer_of_old_batches_does_not_hold_the_stream_up() -> None:
    stream = started(0)
    stream.live(2)
    for _ in range(200):
        stream.wait(0.05)
        if stream.sequence.ask is not None:
            stream.sequence.replayed(stream.sequence.ask.id, 0, payload(0), stream.now)
    said = stream.said()
    assert "2" in said
    assert "gap:partial" in said
