from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sequence import Sequence, engine_time
from engine.stream import Batch, Clear, Gap, Link, ListenerLimits, Position, Signal
from index.worker import Trust

LIMITS = ListenerLimits()
EXACT, PARTIAL = Trust.EXACT, Trust.PARTIAL


def payload(seq: int, ts: float | None = None, process: str = "p") -> bytes:
    return msgspec.msgpack.encode([1000.0 + seq if ts is None else ts, [f"{process}{seq}"], 0])


class Stream:
    """A Sequence with a clock, fed in words."""

    def __init__(
        self,
        replay: bool = True,
        limits: ListenerLimits = LIMITS,
        connected: bool = True,
        resume: Position | None = None,
    ) -> None:
        self.sequence = Sequence(limits, replay, resume, jitter=lambda: 0.0)
        self.now = 100.0
        if connected:
            self.connect()

    def connect(self, fingerprint: str | None = "p") -> None:
        self.sequence.link_up(self.now)
        self.tell(fingerprint)

    def tell(self, fingerprint: str | None) -> None:
        assert self.sequence.inquiry is not None
        self.sequence.verdict(self.sequence.inquiry, fingerprint, self.now)

    def live(self, *seqs: int, process: str = "p") -> None:
        for seq in seqs:
            self.sequence.live(seq, payload(seq, process=process), self.now)

    def answer(self, *seqs: int, marker: bool = True, process: str = "p") -> None:
        ask = self.sequence.ask
        assert ask is not None, "no replay was asked for"
        for seq in seqs:
            self.sequence.replayed(ask.id, seq, payload(seq, process=process), self.now)
        if marker:
            self.sequence.replay_end(ask.id, self.now)

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while (deadline := self.sequence.deadline()) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            self.sequence.tick(self.now)
        self.now = until
        self.sequence.tick(self.now)

    def asked(self) -> int | None:
        return None if self.sequence.ask is None else self.sequence.ask.start

    def said(self) -> list[str]:
        return [say(signal) for signal in self.sequence.take()]


def say(signal: Signal) -> str:
    match signal:
        case Batch(seq, _, replayed):
            return f"{seq}r" if replayed else f"{seq}"
        case Clear(reason, trust):
            return f"{reason}:{trust}"
        case Link(up):
            return "up" if up else "down"
        case Gap(missing):
            return f"gap {missing}"
    raise AssertionError(signal)


def started(*seqs: int, replay: bool = True) -> Stream:
    """A stream that has delivered these numbers live."""
    stream = Stream(replay)
    stream.live(*seqs)
    if replay:
        stream.answer()
        stream.wait(LIMITS.settle_s)
        stream.answer()
    stream.said()
    return stream


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
    stream.wait(LIMITS.settle_s)
    stream.live(7)
    stream.answer(7)
    stream.wait(LIMITS.idle_s)
    stream.answer()
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
    assert stream.said() == ["start:exact", "0"]


def test_the_handshake_hole_is_asked_for_again() -> None:
    stream = Stream()
    stream.answer(0)
    assert stream.asked() is None
    stream.wait(LIMITS.settle_s)
    assert stream.asked() == 1
    stream.answer(1)
    assert stream.said() == ["up", "start:exact", "0r", "1r"]


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


@pytest.mark.parametrize(
    ("raw", "ts"),
    [
        (msgspec.msgpack.encode([1.5, [], 0]), 1.5),
        (msgspec.msgpack.encode([1.5, []]), 1.5),
        (msgspec.msgpack.encode([1, [], 0]), None),
        (msgspec.msgpack.encode({"ts": 1.5}), None),
        (msgspec.msgpack.encode([float("nan"), [], 0]), None),
        (msgspec.msgpack.encode([1.5]), None),
        (b"", None),
        (b"\x93\xcb\x00", None),
    ],
)
def test_engine_time_is_read_from_the_head_or_not_at_all(raw: bytes, ts: float | None) -> None:
    assert engine_time(raw) == ts


# Reconnects


def reconnected(stream: Stream, fingerprint: str | None) -> None:
    stream.sequence.link_down()
    stream.sequence.link_up(stream.now)
    stream.tell(fingerprint)


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
    assert stream.asked() == 0
    stream.live(6, process="q")
    stream.answer(*range(7), process="q")
    assert stream.said() == ["down", "up", "reconnect:exact", *(f"{n}r" for n in range(6)), "6"]


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
    assert stream.said() == ["reconnect:exact", "0", "1"]


def test_a_verdict_that_does_not_come_is_unknown() -> None:
    stream = started(0, 1)
    stream.sequence.link_down()
    stream.sequence.link_up(stream.now)
    stream.live(0, process="q")
    stream.wait(LIMITS.fingerprint_s)
    assert stream.said() == ["down", "up", "reconnect:exact", "0"]


def test_a_new_process_that_published_nothing_leaves_no_dead_blocks() -> None:
    stream = started(0, 1)
    reconnected(stream, "q")
    stream.answer()
    assert stream.said() == ["down", "up", "reconnect:exact"]
    stream.live(0, process="q")
    assert stream.said() == ["0"]


def test_an_unanswered_replay_after_a_reconnect_leaves_no_dead_blocks() -> None:
    stream = started(0, 1)
    reconnected(stream, None)
    stream.wait(5)
    assert stream.said() == ["down", "up", "reconnect:partial"]
    stream.live(0, process="q")
    assert stream.said() == ["start:exact", "0"]


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
    assert stream.said() == ["down", "up", "down", "up", "reconnect:exact", "0r"]


def test_batches_of_a_connection_that_broke_before_its_verdict_are_not_mixed_in() -> None:
    stream = started(0, 1, replay=False)
    stream.sequence.link_down()
    stream.sequence.link_up(stream.now)
    stream.live(0, 1, process="q")
    stream.sequence.link_down()
    stream.sequence.link_up(stream.now)
    stream.live(2, process="r")
    stream.tell("r")
    assert stream.said() == ["down", "up", "down", "up", "reconnect:partial", "2"]


def test_too_much_to_hold_back_for_a_verdict_counts_as_unknown() -> None:
    stream = Stream(limits=ListenerLimits(held_batches=3))
    stream.live(0)
    stream.sequence.link_down()
    stream.sequence.link_up(stream.now)
    stream.said()
    stream.live(0, 1, 2, process="q")
    assert stream.said() == ["reconnect:exact", "0", "1", "2"]


def test_a_gap_behind_a_proxy_is_checked_for_a_restart_that_no_disconnect_showed() -> None:
    stream = started(0, 1)
    stream.live(6, process="q")
    stream.answer(*range(2, 7), process="q")
    stream.tell("q")
    assert stream.asked() == 0
    stream.answer(*range(7), process="q")
    assert stream.said()[-8:] == ["restart:exact", *(f"{n}r" for n in range(7))]


def test_resuming_goes_on_where_a_former_listener_was() -> None:
    stream = Stream(resume=Position(5, "p", EXACT))
    assert stream.asked() == 5
    stream.answer(5, 6)
    assert stream.said() == ["up", "5r", "6r"]
    assert stream.sequence.position == Position(7, "p", EXACT)


def test_resuming_with_another_process_clears() -> None:
    stream = Stream(resume=Position(5, "o", EXACT))
    assert stream.asked() == 0
    stream.answer(0)
    assert stream.said() == ["up", "reconnect:exact", "0r"]


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


# Any pattern


@dataclass
class World:
    """An engine whose processes come and go, a lossy network, and a consumer that checks what it is told."""

    replay: bool
    buffer_steps: int
    now: float = 100.0
    process: int = 0
    connected: bool = True
    published: list[bytes] = field(default_factory=list)
    received: list[Batch] = field(default_factory=list)
    trust: Trust | None = None
    answered_ask: int = 0
    answer: list[tuple[int, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sequence = Sequence(ListenerLimits(held_batches=50), self.replay, jitter=lambda: 0.5)
        self.sequence.link_up(self.now)

    def publish(self, delivered: bool) -> None:
        self.published.append(msgspec.msgpack.encode([self.now, [self.process, len(self.published)], 0]))
        if delivered and self.connected:
            self.deliver(len(self.published) - 1)

    def deliver(self, seq: int) -> None:
        self.sequence.live(seq, self.published[seq], self.now)

    def repeat(self, back: int) -> None:
        """Duplicates are of batches that were delivered."""
        known = [b.seq for b in self.received if not b.replayed and self.published[b.seq : b.seq + 1] == [b.payload]]
        if known and self.connected:
            self.deliver(known[-1 - back % len(known)])

    def restart(self, more: int) -> None:
        """A new process; where no disconnect shows it, its first batches do."""
        self.process += 1
        self.published = []
        self.answer = []  # the publisher that was sending it is no more
        for _ in range(1 + more):
            self.publish(delivered=True)

    def switch_link(self) -> None:
        self.connected = not self.connected
        if self.connected:
            self.sequence.link_up(self.now)
        else:
            self.sequence.link_down()

    def fingerprint(self, known: bool) -> None:
        if self.sequence.inquiry is not None and self.connected:
            self.sequence.verdict(self.sequence.inquiry, str(self.process) if known else None, self.now)

    def serve(self, lost: set[int]) -> None:
        """The publisher answers a request, once, with what it has now."""
        ask = self.sequence.ask
        if ask is None or ask.id == self.answered_ask:
            return
        self.answered_ask = ask.id
        oldest = max(ask.start, len(self.published) - self.buffer_steps)
        batches = [(seq, self.published[seq]) for seq in range(oldest, len(self.published))]
        self.answer = [batch for place, batch in enumerate(batches) if place not in lost]

    def arrive(self, count: int, marker: bool) -> None:
        """So many batches of the answer arrive, perhaps its end marker with the last."""
        arriving, self.answer = self.answer[:count], self.answer[count:]
        for seq, batch in arriving:
            self.sequence.replayed(self.answered_ask, seq, batch, self.now)
        if marker and not self.answer:
            self.sequence.replay_end(self.answered_ask, self.now)

    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while (deadline := self.sequence.deadline()) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            self.sequence.tick(self.now)
        self.now = until
        self.sequence.tick(self.now)

    def settle(self) -> None:
        """Everything works again, for long enough."""
        if not self.connected:
            self.switch_link()
        for _ in range(60):
            self.fingerprint(known=True)
            self.serve(set())
            self.arrive(10**9, marker=True)
            self.pass_time(1.0)
            self.check()

    def check(self) -> None:
        for signal in self.sequence.take():
            match signal:
                case Clear(_, trust):
                    self.received, self.trust = [], trust
                case Batch(seq):
                    assert self.trust is not None, "a batch before the first Clear"
                    if self.received:
                        assert seq == self.received[-1].seq + 1
                    elif self.trust is EXACT:
                        assert seq == 0
                    self.received.append(signal)


few = st.integers(0, 4)
steps = st.one_of(
    st.tuples(st.just("publish"), st.tuples(st.lists(st.booleans(), min_size=1, max_size=8))),
    st.tuples(st.just("repeat"), st.tuples(st.integers(0, 10))),
    st.tuples(st.just("switch_link"), st.tuples()),
    st.tuples(st.just("restart"), st.tuples(few)),
    st.tuples(st.just("fingerprint"), st.tuples(st.booleans())),
    st.tuples(st.just("serve"), st.tuples(st.sets(st.integers(0, 8), max_size=3))),
    st.tuples(st.just("arrive"), st.tuples(st.sampled_from([1, 2, 5, 100]), st.booleans())),
    st.tuples(st.just("pass_time"), st.tuples(st.sampled_from([0.01, 0.2, 1.0, 4.0, 8.0]))),
    st.tuples(st.just("resync"), st.tuples()),
)


def act(world: World, name: str, arguments: tuple[Any, ...]) -> None:
    if name == "publish":
        for delivered in arguments[0]:
            world.publish(delivered)
    elif name == "resync":
        world.sequence.resync("orphans", world.now)
    else:
        getattr(world, name)(*arguments)
    world.check()
    world.now += 0.01


@settings(max_examples=800, deadline=None)
@given(steps=st.lists(steps, max_size=30), replay=st.booleans(), buffer_steps=st.sampled_from([1, 4, 1000]))
def test_any_pattern_of_losses_ends_with_the_published_order_or_an_honest_clear(
    steps: list[tuple[str, tuple[Any, ...]]], replay: bool, buffer_steps: int
) -> None:
    world = World(replay, buffer_steps)
    for name, arguments in steps:
        act(world, name, arguments)
    world.settle()
    got = [batch.payload for batch in world.received]
    if replay:
        assert got == world.published[len(world.published) - len(got) :]
        assert got or not world.published
    elif got:
        first = world.received[0].seq
        assert got == world.published[first : first + len(got)]
