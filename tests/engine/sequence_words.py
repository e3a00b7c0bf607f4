"""A Sequence fed and read in words, with a clock of its own."""

from __future__ import annotations

import msgspec

from engine.sequence import Sequence
from engine.stream import Batch, Clear, Current, Gap, Link, ListenerLimits, Position, Resumed, Signal, Stale
from index.worker import Trust

LIMITS = ListenerLimits()
EXACT, PARTIAL = Trust.EXACT, Trust.PARTIAL


def payload(seq: int, ts: float | None = None, process: str = "p") -> bytes:
    return msgspec.msgpack.encode([1000.0 + seq if ts is None else ts, [f"{process}{seq}"], 0])


def tick_through(sequence: Sequence, now: float, seconds: float) -> float:
    """Let so many seconds pass, with a tick at each deadline and at the end; returns the time then."""
    until = now + seconds
    while (deadline := sequence.deadline()) is not None and deadline <= until:
        now = max(now, deadline)
        sequence.tick(now)
    sequence.tick(until)
    return until


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
        self.now = tick_through(self.sequence, self.now, seconds)

    def asked(self) -> int | None:
        return None if self.sequence.ask is None else self.sequence.ask.start

    def said(self) -> list[str]:
        """What was told, but for how current it is."""
        return [say(signal) for signal in self.sequence.take() if not isinstance(signal, Stale | Current)]

    def said_of_currency(self) -> list[str]:
        """What was told, with how current it is."""
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
        case Resumed():
            return "resumed"
        case Stale():
            return "stale"
        case Current(sure):
            return "current" if sure else "current as far as known"
    raise AssertionError(signal)


def started(*seqs: int, replay: bool = True) -> Stream:
    """A stream that has delivered these numbers live."""
    stream = Stream(replay)
    stream.live(*seqs)
    if replay:
        stream.answer()
    stream.said()
    return stream


def reconnected(stream: Stream, fingerprint: str | None) -> None:
    stream.sequence.link_down()
    stream.sequence.link_up(stream.now)
    stream.tell(fingerprint)
