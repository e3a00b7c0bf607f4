"""The engine behind a case's instance: one rank's publisher and replay socket, and what was published so far."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from tests.support.case_events import payload
from tests.support.publisher import Publisher, in_a_row, ranks
from tests.support.scripted_replay import Frames, Manner, ScriptedReplay, replay_frames

SEQ_BYTES = 8


@dataclass
class EventSocket:
    """A publisher that can be closed and opened; several engines may send through it."""

    publisher: Publisher
    up: bool = True

    def close(self) -> None:
        """Lose all connections."""
        if self.up:
            self.publisher.stop()
        self.up = False

    def open(self) -> None:
        """Listen at the same port again, and wait until the router is back."""
        if not self.up:
            self.publisher.start()
            self.publisher.wait_for_subscriber()
        self.up = True


@dataclass
class CaseEngine:
    """One process of one rank. Batches get one time stamp each, so that a repeated one is the same bytes."""

    socket: EventSocket
    replay: ScriptedReplay | None
    fixed_ts: float | None
    sent: dict[int, bytes] = field(default_factory=dict)
    last_seq: int | None = None
    _stamps: dict[tuple[int, bytes], float] = field(default_factory=dict)

    def batch(self, seq: int, events: list[dict[str, Any]], topic: str = "") -> None:
        """Publish a case's events under a number; the same number and events are the same message again."""
        self.send(seq, self._encoded(seq, events), topic)

    def send(self, seq: int, body: bytes, topic: str = "") -> None:
        """Publish a payload under a number."""
        self.socket.open()
        self.note(seq, body)
        self.socket.publisher.send_frames(topic.encode(), seq.to_bytes(SEQ_BYTES, "big"), body)

    def send_frames(self, frames: list[bytes]) -> None:
        """Publish any message. Of a well-formed one the number counts as used."""
        self.socket.open()
        if len(frames) == 3 and len(frames[1]) == SEQ_BYTES:
            self.note(int.from_bytes(frames[1], "big"), frames[2])
        self.socket.publisher.send_frames(*frames)

    def note(self, seq: int, body: bytes) -> None:
        """Keep a batch for replay. The stream is now at its number."""
        self.last_seq = seq
        self.sent[seq] = body
        if self.replay is not None:
            self.replay.buffer = sorted(self.sent.items())

    def keep(self, batches: list[dict[str, Any]]) -> None:
        """Batches that were published while nobody listened."""
        for batch in batches:
            self.note(batch["seq"], self._encoded(batch["seq"], batch["events"]))

    def script(self, start: int, batches: list[dict[str, Any]], end: list[Frames]) -> None:
        """Answer a replay from `start` with just these batches."""
        assert self.replay is not None
        answer = [replay_frames(one["seq"], self._encoded(one["seq"], one["events"])) for one in batches]
        self.replay.script[start] = answer + end

    def restart(self, lose_connection: bool) -> None:
        """A new process at the same endpoint: nothing buffered, numbers from 0."""
        self.sent.clear()
        self._stamps.clear()
        self.last_seq = None
        if self.replay is not None:
            self.replay.buffer = []
        if lose_connection:
            self.socket.close()

    def _encoded(self, seq: int, events: list[dict[str, Any]]) -> bytes:
        key = seq, payload(events, 0.0)
        if key not in self._stamps:
            self._stamps[key] = time.time() if self.fixed_ts is None else self.fixed_ts
        return payload(events, self._stamps[key])


def start_engine(stack: ExitStack, rank_count: int, manner: Manner | None, fixed_ts: float | None) -> list[CaseEngine]:
    """One engine process, a rank per entry, ports in a row. `manner` None: no replay sockets."""
    publishers = [stack.enter_context(one) for one in ranks(rank_count, replay=False)]
    replays = [None] * rank_count if manner is None else _replays(stack, rank_count, manner)
    return [CaseEngine(EventSocket(one), replay, fixed_ts) for one, replay in zip(publishers, replays, strict=True)]


def _replays(stack: ExitStack, count: int, manner: Manner) -> list[ScriptedReplay]:
    replays = in_a_row(count, lambda port: ScriptedReplay(port, manner))
    return [stack.enter_context(one) for one in replays]
