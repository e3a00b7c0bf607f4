"""The replay half of a listener: a DEALER that asks the publisher for batches again, and its answers.

Answers are those of vLLM 0.32 and SGLang 0.5.22, `[b"", topic, seq, payload]`, before them without topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import zmq

from engine.asking import Ask
from engine.frames import waiting
from engine.sequence import Sequence
from engine.sockets import Socket, Sockets
from engine.stream import BadFrame

END_SEQ = 2**64 - 1
"""The number in the end marker of an answer."""


class Replay:
    """At most one request at a time, for what a sequence wants."""

    def __init__(self, sockets: Sockets, endpoint: str | None, sequence: Sequence, ring: Callable[[], None]) -> None:
        """`endpoint` is None when the publisher cannot be asked; then the sequence must not want it."""
        self._sockets = sockets
        self._endpoint = endpoint
        self._sequence = sequence
        self._ring = ring
        self._dealer: Socket | None = None
        self._ask_id = 0

    def try_endpoint(self) -> None:
        """A malformed endpoint should be known at once, not with the first gap. Raises zmq.ZMQError."""
        if self._endpoint is not None:
            self._connect(self._endpoint)
            self.close()

    def ask(self) -> None:
        """Make the request under way the one that is wanted; a fresh socket each, so that answers cannot mix."""
        ask = self._sequence.ask
        if ask is None or ask.id != self._ask_id:
            self.close()
            if ask is not None:
                self._send(ask)

    def read(self, now: float, slices: Iterator[None], bad_frames: list[BadFrame]) -> bool:
        """Take what was replayed. Whether some may be left."""
        if self._dealer is None:
            return False
        for _ in slices:
            messages, more = waiting(self._dealer)
            for frames in messages:
                if not self._take(frames, now, bad_frames):
                    return False
            if not more:
                return False
        return True

    def close(self) -> None:
        """Give up the request under way."""
        if self._dealer is not None:
            self._sockets.close(self._dealer)
            self._dealer = None

    def _take(self, frames: list[bytes], now: float, bad_frames: list[BadFrame]) -> bool:
        """False: that was the end of the answer."""
        if len(frames) not in (3, 4):
            bad_frames.append(BadFrame("replay_frame_count"))
        elif len(frames[-2]) != 8:
            bad_frames.append(BadFrame("replay_seq_length"))
        elif (seq := int.from_bytes(frames[-2], "big")) == END_SEQ:
            self._sequence.replay_end(self._ask_id, now)
            return False
        else:
            self._sequence.replayed(self._ask_id, seq, frames[-1], now)
        return True

    def _send(self, ask: Ask) -> None:
        assert self._endpoint is not None
        self._ask_id = ask.id
        dealer = self._connect(self._endpoint)
        dealer.send_multipart([b"", ask.start.to_bytes(8, "big")], zmq.NOBLOCK)
        self._ring()

    def _connect(self, endpoint: str) -> Socket:
        self._dealer = self._sockets.open(zmq.DEALER, self._ring)
        self._dealer.connect(endpoint)
        return self._dealer
