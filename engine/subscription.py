"""The live half of a listener: a SUB for what is published, and a monitor of its link.

Frames are those of vLLM 0.32 and SGLang 0.5.22, `[topic, seq, payload]`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from engine.frames import waiting
from engine.replay import END_SEQ
from engine.sequence import Sequence
from engine.sockets import Socket, Sockets
from engine.stream import BadFrame


class Subscription:
    """What is published at an endpoint, told to a sequence in order, with what becomes of the link."""

    def __init__(
        self, sockets: Sockets, endpoint: str, topic: str, sequence: Sequence, ring: Callable[[], None]
    ) -> None:
        """`topic` is subscribed to as a prefix; when it is not empty, only messages with this whole topic count."""
        self._sockets = sockets
        self._endpoint = endpoint
        self._topic = topic.encode()
        self._sequence = sequence
        self._ring = ring
        self._link_events: deque[int] = deque()
        self._events: Socket | None = None
        self._monitor: Socket | None = None

    def open(self) -> None:
        """Connect. Raises zmq.ZMQError for a malformed endpoint; then there may be sockets to `close`."""
        events = self._events = self._sockets.open(zmq.SUB, self._ring)
        events.set(zmq.TCP_KEEPALIVE, 1)
        events.set(zmq.TCP_KEEPALIVE_IDLE, 15)
        events.set(zmq.TCP_KEEPALIVE_INTVL, 5)
        events.set(zmq.TCP_KEEPALIVE_CNT, 3)
        events.set(zmq.RECONNECT_IVL, 100)
        events.set(zmq.RECONNECT_IVL_MAX, 500)  # a restarted engine's old blocks are claimed until then
        link_events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        self._monitor = self._sockets.open_monitor(events, link_events, self._ring)
        events.subscribe(self._topic)
        events.connect(self._endpoint)

    def read(self, now: float, slices: Iterator[None], bad_frames: list[BadFrame]) -> bool:
        """Take what was published, then what became of the link. Whether some may be left."""
        assert self._events is not None, "used outside its listener's `async with`"
        self._read_monitor()
        left = True
        for _ in slices:
            messages, more = waiting(self._events)
            at = 0
            while at < len(messages):
                run = self._sequence.live_run(messages, at, self._topic, now)
                at += run or self._take_one(messages[at], now, bad_frames)
            if not more:
                left = False
                break
        self._apply_link_events(left, now)
        return left or bool(self._link_events)

    def close(self) -> None:
        """Disconnect."""
        if self._events is not None:
            self._events.disable_monitor()
            self._sockets.close(self._events)
            self._events = None
        if self._monitor is not None:
            self._sockets.close(self._monitor)
            self._monitor = None

    def _read_monitor(self) -> None:
        monitor: Any = self._monitor
        while monitor.get(zmq.EVENTS) & zmq.POLLIN:  # an Again that is raised costs ten times as much
            message: Any = recv_monitor_message(monitor, zmq.NOBLOCK)
            self._link_events.append(message["event"])

    def _take_one(self, frames: list[bytes], now: float, bad_frames: list[BadFrame]) -> int:
        if len(frames) != 3:
            bad_frames.append(BadFrame("frame_count"))
        elif not self._topic or frames[0] == self._topic:
            self._live(frames[1], frames[2], now, bad_frames)
        return 1

    def _live(self, seq: bytes, payload: bytes, now: float, bad_frames: list[BadFrame]) -> None:
        if len(seq) != 8:
            bad_frames.append(BadFrame("seq_length"))
        elif (number := int.from_bytes(seq, "big")) == END_SEQ:
            bad_frames.append(BadFrame("seq_range"))
        else:
            self._sequence.live(number, payload, now)

    def _apply_link_events(self, events_left: bool, now: float) -> None:
        """A disconnect counts only after all that came before it was read."""
        while self._link_events:
            if self._link_events[0] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._sequence.link_up(now)
            elif events_left:
                return
            else:
                self._sequence.link_down()
            self._link_events.popleft()
