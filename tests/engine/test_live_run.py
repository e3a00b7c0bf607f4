"""Messages taken in many at once leave a stream as the same messages one by one do."""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.sequence import Sequence
from engine.stream import Batch, ListenerLimits, Position, Signal
from index.native import CORE
from index.worker import Trust

pytestmark = pytest.mark.skipif(CORE.module is None, reason="only the native core takes many at once")

TOPIC = b"kv"
LIMITS = ListenerLimits(remembered_batches=8, held_batches=4)
NOW = 1.7e9


class Kind(NamedTuple):
    """How a message differs from the next one of a quiet stream."""

    step: int = 1
    later_s: float = 0.01
    topic: bytes = TOPIC
    form: str = "plain"


USUAL = st.just(Kind())
TIMED = st.sampled_from([5.0, 0.5, -0.5, -5.0]).map(lambda later_s: Kind(later_s=later_s))
ODD = st.builds(
    Kind,
    st.sampled_from([1, 1, 0, 2, 3, -1, -5, -1000]),
    st.sampled_from([0.0, 0.5, 5.0, -0.5, -5.0, -NOW, math.inf, math.nan]),
    st.sampled_from([TOPIC, TOPIC, b"", b"kv2"]),
    st.sampled_from(["plain", "plain", "map", "short", "int", "two frames", "long seq"]),
)
STREAMS = st.lists(st.lists(st.one_of(USUAL, TIMED, ODD), max_size=12), max_size=8)
BEGINNINGS = st.sampled_from(
    [
        None,
        Position(5, "p", None, Trust.EXACT),
        Position(5, None, b"12345678", Trust.PARTIAL),
        Position(0, "p", None, Trust.EXACT),
    ]
)


def payload(form: str, ts: float, number: int) -> bytes:
    match form:
        case "map":
            return b"\x82" + struct.pack(">d", ts)
        case "short":
            return b"\x92\xcb"
        case "int":
            return b"\x92\x05\x90" + bytes(10)
        case _:
            return b"\x92\xcb" + struct.pack(">d", ts) + b"\x90" + bytes([number % 3])


def messages(stream: list[list[Kind]], first: int) -> list[list[list[bytes]]]:
    seq, ts = first - 1, NOW
    made: list[list[list[bytes]]] = []
    for part in stream:
        made.append([])
        for kind in part:
            seq = max(0, seq + kind.step)
            if math.isfinite(kind.later_s):
                ts += kind.later_s
            told = ts if math.isfinite(kind.later_s) else kind.later_s
            frames = [kind.topic, seq.to_bytes(8, "big"), payload(kind.form, told, seq)]
            if kind.form == "two frames":
                frames.pop()
            if kind.form == "long seq":
                frames[1] += b"\0"
            made[-1].append(frames)
    return made


def one(sequence: Sequence, frames: list[bytes], topic: bytes, now: float) -> None:
    if len(frames) == 3 and len(frames[1]) == 8 and (not topic or frames[0] == topic):
        sequence.live(int.from_bytes(frames[1], "big"), frames[2], now)


class Outcome(NamedTuple):
    """All that is told of a stream."""

    signals: list[Signal]
    position: Position | None
    deadline: float | None
    ask: object
    known: list[bool]


def played(
    parts: list[list[list[bytes]]], topic: bytes, beginning: Position | None, many: bool
) -> tuple[list[Outcome], int]:
    sequence = Sequence(LIMITS, replay=True, resume=beginning, jitter=lambda: 0.5)
    now, outcomes, taken, was_lost = 100.0, [], 0, False
    sequence.link_up(now)
    if sequence.inquiry is not None:
        sequence.verdict(sequence.inquiry, "p", now)
    for part in parts:
        now += 0.1
        if lost := part == [] and sequence.position is not None:
            sequence.link_down()
            sequence.link_up(now)
        elif was_lost and sequence.inquiry is not None and len(part) > 3:
            sequence.verdict(sequence.inquiry, "p", now)
        was_lost = lost or (was_lost and len(part) <= 3)
        sequence.tick(now)
        at = 0
        while at < len(part):
            count = sequence.live_run(part, at, topic, now) if many else 0
            taken += count
            if not count:
                one(sequence, part[at], topic, now)
            at += count or 1
        signals = sequence.take()
        known = [
            sequence._order.is_known(signal.seq, signal.payload) for signal in signals if isinstance(signal, Batch)
        ]
        outcomes.append(Outcome(signals, sequence.position, sequence.deadline(), sequence.ask, known))
    return outcomes, taken


@settings(max_examples=500)
@example([[Kind(), Kind(), Kind(later_s=5.0), Kind(later_s=-5.0), Kind()]], TOPIC, None, 0)
@given(STREAMS, st.sampled_from([b"", TOPIC]), BEGINNINGS, st.integers(0, 6))
def test_many_at_once_are_as_one_by_one(
    stream: list[list[Kind]], topic: bytes, beginning: Position | None, first: int
) -> None:
    parts = messages(stream, first)
    assert played(parts, topic, beginning, many=True)[0] == played(parts, topic, beginning, many=False)[0]


def test_a_quiet_stream_is_taken_many_at_once() -> None:
    parts = messages([[Kind()] * 10] * 3, 0)
    outcomes, taken = played(parts, TOPIC, None, many=True)
    assert taken >= 25
    assert [signal.seq for outcome in outcomes for signal in outcome.signals if isinstance(signal, Batch)] == list(
        range(30)
    )
