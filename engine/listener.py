"""The sockets of one worker's event stream: SUB for what is published, DEALER for replays, a monitor for the link.

Everything that is decided is decided in `engine.sequence`; here messages are taken from sockets, all that wait per
wake-up, and frames are checked. Frames are those of vLLM 0.32 and SGLang 0.5.22 (`[topic, seq, payload]`; replay
`[b"", topic, seq, payload]`, before them without topic).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType
from typing import Any, Self

import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from engine.sequence import Sequence
from engine.stream import (
    BadFrame,
    Batch,
    Clear,
    Gap,
    Link,
    ListenerLimits,
    Position,
    Resumed,
    Signal,
    Source,
)

__all__ = [
    "BadFrame",
    "Batch",
    "Clear",
    "Gap",
    "Link",
    "Listener",
    "ListenerLimits",
    "Position",
    "Resumed",
    "Signal",
    "Source",
]

READ_S = 0.0005
"""How long one step may read from a socket."""
END_SEQ = 2**64 - 1
"""The number in the end marker of a replay answer."""

Socket = zmq.Socket[bytes]


class Listener:
    """One worker followed: `async with Listener(...) as listener: async for signals in listener: ...`.

    Each step yields what is ready, in order, never an empty list; the iteration has no end. Who shares the loop among
    several listeners waits with `ready` and reads with `take` when it is this one's turn. A slow consumer loses
    nothing: both sockets receive without a high-water mark. `fingerprint` tells what identifies the engine's process;
    an error, None or no answer within `fingerprint_s` count as unknown. With `resume`, a `Resumed` says that what the
    consumer holds up to that position stays, or a `Clear` that it does not, before the first `Batch`. Entering raises
    `zmq.ZMQError` for an endpoint that is not one. Needs an event loop with `add_reader`.
    """

    def __init__(
        self,
        context: zmq.asyncio.Context,
        source: Source,
        limits: ListenerLimits,
        fingerprint: Callable[[], Awaitable[str | None]],
        resume: Position | None = None,
    ) -> None:
        self._context: zmq.Context[Socket] = zmq.Context.shadow(context.underlying)
        self._source = source
        self._topic = source.topic.encode()
        self._limits = limits
        self._fingerprint = fingerprint
        self._sequence = Sequence(limits, source.replay is not None, resume)
        self._wake = asyncio.Event()
        self._wake.set()
        self._bad_frames: list[BadFrame] = []
        self._link_events: deque[int] = deque()
        self._events: Socket | None = None
        self._monitor: Socket | None = None
        self._dealer: Socket | None = None
        self._dealer_ask = 0
        self._inquiries: set[asyncio.Task[None]] = set()
        self._inquiry_id = 0
        self._more = False

    def resync(self, reason: str, *, known_too: bool = False) -> bool:
        """Forget and replay from 0 (a `Clear(reason, ...)` follows). False: done lately, or nothing new would come.

        With `known_too` also if only what is known already will come.
        """
        self._wake.set()
        return self._sequence.resync(reason, asyncio.get_running_loop().time(), known_too=known_too)

    def told_process(self, fingerprint: str) -> None:
        """The engine's fingerprint as somebody else read it: another one than that of the followed process restarts."""
        self._wake.set()
        self._sequence.told_process(fingerprint, asyncio.get_running_loop().time())

    @property
    def resync_requests(self) -> Counter[str]:
        """How often `resync` was called, by reason."""
        return self._sequence.resync_requests

    @property
    def position(self) -> Position | None:
        """What a later Listener can `resume` from, once the whole of the list yielded last has been applied.

        None: there is nothing to resume; the consumer holds nothing, or is about to be told to forget it. Free of cost.
        """
        return self._sequence.position

    async def __aenter__(self) -> Self:
        try:
            self._open_events()
            self._try_replay_endpoint()
        except BaseException:
            self._close_sockets()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close_sockets()
        self._cancel_inquiries()
        await asyncio.gather(*self._inquiries, return_exceptions=True)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Signal]:
        while True:
            await self.ready()
            if signals := self.take():
                return signals

    async def ready(self) -> None:
        """Until there may be something to take; others get the loop first: a busy stream must not own it."""
        if self._more:
            await asyncio.sleep(0)
        elif not self._wake.is_set():
            await self._sleep()

    def take(self) -> list[Signal]:
        """What is ready, in order; perhaps nothing. Reads for a bounded time."""
        self._wake.clear()
        return self._step()

    def _step(self) -> list[Signal]:
        now = asyncio.get_running_loop().time()
        self._read_monitor()
        events_left = self._read_events(now)
        self._apply_link_events(events_left, now)
        self._more = self._read_dealer(now) or events_left or bool(self._link_events)
        self._sequence.tick(now)
        self._ask()
        self._inquire()
        bad_frames, self._bad_frames = self._bad_frames, []
        return [*bad_frames, *self._sequence.take()]

    async def _sleep(self) -> None:
        deadline = self._sequence.deadline()
        if deadline is None:
            await self._wake.wait()
            return
        alarm = asyncio.get_running_loop().call_at(deadline, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            alarm.cancel()

    def _slice(self) -> Iterator[None]:
        """As often as one step may read from a socket."""
        end = time.perf_counter() + READ_S
        for _ in range(self._limits.drain_batches):
            yield
            if time.perf_counter() > end:
                return

    # Events

    def _open_events(self) -> None:
        events = self._events = self._open_socket(zmq.SUB)
        events.set(zmq.TCP_KEEPALIVE, 1)
        events.set(zmq.TCP_KEEPALIVE_IDLE, 15)
        events.set(zmq.TCP_KEEPALIVE_INTVL, 5)
        events.set(zmq.TCP_KEEPALIVE_CNT, 3)
        events.set(zmq.RECONNECT_IVL, 100)
        events.set(zmq.RECONNECT_IVL_MAX, 500)  # a restarted engine's old blocks are claimed until then
        monitor: Socket = events.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self._monitor = monitor
        self._watch(monitor)
        events.subscribe(self._topic)
        events.connect(self._source.events)

    def _read_monitor(self) -> None:
        assert self._monitor is not None, "used outside its `async with`"
        while True:
            try:
                message: Any = recv_monitor_message(self._monitor, zmq.NOBLOCK)
            except zmq.Again:
                return
            self._link_events.append(message["event"])

    def _read_events(self, now: float) -> bool:
        """Take what was published. Whether some may be left."""
        assert self._events is not None
        for _ in self._slice():
            try:
                frames = self._events.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return False
            if len(frames) != 3:
                self._bad_frames.append(BadFrame("frame_count"))
            elif not self._topic or frames[0] == self._topic:
                self._live(frames[1], frames[2], now)
        return True

    def _live(self, seq: bytes, payload: bytes, now: float) -> None:
        if len(seq) != 8:
            self._bad_frames.append(BadFrame("seq_length"))
        elif (number := int.from_bytes(seq, "big")) == END_SEQ:
            self._bad_frames.append(BadFrame("seq_range"))
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

    # Replay

    def _ask(self) -> None:
        """Make the request under way the one that is wanted; a fresh socket each, so that answers cannot mix."""
        ask = self._sequence.ask
        if ask is None or ask.id != self._dealer_ask:
            self._close_dealer()
        if ask is not None and ask.id != self._dealer_ask:
            assert self._source.replay is not None
            self._dealer_ask = ask.id
            self._dealer = self._open_socket(zmq.DEALER)
            self._dealer.connect(self._source.replay)
            self._dealer.send_multipart([b"", ask.start.to_bytes(8, "big")], zmq.NOBLOCK)
            self._wake.set()

    def _try_replay_endpoint(self) -> None:
        """A malformed endpoint should be known at once, not with the first gap."""
        if self._source.replay is not None:
            self._dealer = self._open_socket(zmq.DEALER)
            self._dealer.connect(self._source.replay)
            self._close_dealer()

    def _read_dealer(self, now: float) -> bool:
        """Take what was replayed. Whether some may be left."""
        if self._dealer is None:
            return False
        for _ in self._slice():
            try:
                frames = self._dealer.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return False
            if len(frames) not in (3, 4):
                self._bad_frames.append(BadFrame("replay_frame_count"))
            elif len(frames[-2]) != 8:
                self._bad_frames.append(BadFrame("replay_seq_length"))
            elif (seq := int.from_bytes(frames[-2], "big")) == END_SEQ:
                self._sequence.replay_end(self._dealer_ask, now)
                return False
            else:
                self._sequence.replayed(self._dealer_ask, seq, frames[-1], now)
        return True

    # Fingerprints

    def _inquire(self) -> None:
        wanted = self._sequence.inquiry
        if wanted != self._inquiry_id:
            self._cancel_inquiries()
        if wanted is not None and wanted != self._inquiry_id:
            self._inquiry_id = wanted
            task = asyncio.create_task(self._fetch_fingerprint(wanted))
            self._inquiries.add(task)
            task.add_done_callback(self._inquiries.discard)

    def _cancel_inquiries(self) -> None:
        for task in self._inquiries:
            task.cancel()

    async def _fetch_fingerprint(self, inquiry: int) -> None:
        fingerprint = None
        try:
            async with asyncio.timeout(self._limits.fingerprint_s):
                fingerprint = await self._fingerprint()
        except Exception:  # noqa: S110 - whatever went wrong, the answer is: unknown
            pass
        self._sequence.verdict(inquiry, fingerprint, asyncio.get_running_loop().time())
        self._wake.set()

    # Sockets

    def _open_socket(self, kind: int) -> Socket:
        socket: Socket = self._context.socket(kind)
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.RCVHWM, 0)
        socket.set(zmq.IPV6, 1)
        self._watch(socket)
        return socket

    def _watch(self, socket: Socket) -> None:
        asyncio.get_running_loop().add_reader(socket.FD, self._wake.set)

    def _close_dealer(self) -> None:
        if self._dealer is not None:
            self._close(self._dealer)
            self._dealer = None

    def _close_sockets(self) -> None:
        self._close_dealer()
        if self._events is not None:
            self._events.disable_monitor()
            self._close(self._events)
            self._events = None
        if self._monitor is not None:
            self._close(self._monitor)
            self._monitor = None

    def _close(self, socket: Socket) -> None:
        if not socket.closed:
            asyncio.get_running_loop().remove_reader(socket.FD)
            socket.close(0)
