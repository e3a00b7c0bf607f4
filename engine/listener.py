"""One worker's event stream followed: what is published, what is replayed, and which process it is, in steps.

Everything that is decided is decided in `engine.sequence`; messages are taken from their sockets in
`engine.subscription` and `engine.replay`, all that wait per wake-up. Here is when.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType
from typing import Self

import zmq.asyncio

from engine.bells import Bells
from engine.frames import MOST
from engine.process_call import ProcessCall
from engine.replay import Replay
from engine.sequence import Sequence
from engine.sockets import Sockets
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
from engine.subscription import Subscription

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


class Listener:
    """One worker followed: `async with Listener(...) as listener: async for signals in listener: ...`.

    Each step yields what is ready, in order, never an empty list; the iteration has no end. Who shares the loop among
    several listeners has itself told (`tell`) and reads with `take` when it is this one's turn. A slow consumer loses
    nothing: both sockets receive without a high-water mark. `bells` watches the sockets of several listeners together.
    `fingerprint` tells what identifies the engine's process; an error, None or no answer within `fingerprint_s` count
    as unknown. With `resume`, a `Resumed` says that what the consumer holds up to that position stays, or a `Clear`
    that it does not, before the first `Batch`. Entering raises `zmq.ZMQError` for an endpoint that is not one. Needs
    an event loop with `add_reader`.
    """

    def __init__(
        self,
        context: zmq.asyncio.Context,
        source: Source,
        limits: ListenerLimits,
        fingerprint: Callable[[], Awaitable[str | None]],
        resume: Position | None = None,
        *,
        bells: Bells | None = None,
    ) -> None:
        self._limits = limits
        self._sequence = Sequence(limits, source.replay is not None, resume)
        self._sockets = Sockets(context, Bells() if bells is None else bells)
        self._subscription = Subscription(self._sockets, source.events, source.topic, self._sequence, self._ring)
        self._replay = Replay(self._sockets, source.replay, self._sequence, self._ring)
        self._call = ProcessCall(fingerprint, limits.fingerprint_s, self._sequence, self._ring)
        self._wake = asyncio.Event()
        self._tell: Callable[[], None] = self._wake.set
        self._wake.set()
        self._alarm: asyncio.TimerHandle | None = None
        self._bad_frames: list[BadFrame] = []
        self.more = False
        """Whether `take` left something."""

    def resync(self, reason: str, *, known_too: bool = False) -> bool:
        """Forget and replay from 0 (a `Clear(reason, ...)` follows). False: done lately, or nothing new would come.

        With `known_too` also if only what is known already will come.
        """
        self._tell()
        return self._sequence.resync(reason, asyncio.get_running_loop().time(), known_too=known_too)

    def told_process(self, fingerprint: str) -> None:
        """The engine's fingerprint as somebody else read it: another one than that of the followed process restarts."""
        self._tell()
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
            self._subscription.open()
            self._replay.try_endpoint()
        except BaseException:
            self._close_sockets()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close_sockets()
        self._cancel_alarm()
        await self._call.end()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Signal]:
        while True:
            await self._ready()
            if signals := self.take():
                return signals

    async def _ready(self) -> None:
        """Until there may be something to take; others get the loop first: a busy stream must not own it."""
        if self.more:
            await asyncio.sleep(0)
        else:
            await self._wake.wait()

    def tell(self, call: Callable[[], None]) -> None:
        """Have `call` called whenever there may be something to take, from now on and at once; instead of iterating.

        It is called from the loop or from one of this object's methods, and must not take.
        """
        self._tell = call
        call()

    def take(self) -> list[Signal]:
        """What is ready, in order; perhaps nothing. Reads for a bounded time. When `more`, nobody tells of the rest."""
        self._wake.clear()
        signals = self._step()
        self._set_alarm()
        return signals

    def _step(self) -> list[Signal]:
        now = asyncio.get_running_loop().time()
        events_left = self._subscription.read(now, self._slice(), self._bad_frames)
        self.more = self._replay.read(now, self._slice(), self._bad_frames) or events_left
        self._sequence.tick(now)
        self._replay.ask()
        self._call.make()
        bad_frames, self._bad_frames = self._bad_frames, []
        return [*bad_frames, *self._sequence.take()]

    def _set_alarm(self) -> None:
        """One that rings too early is left as it is: the time moves on with every batch."""
        deadline = self._sequence.deadline()
        if deadline is None or (self._alarm is not None and self._alarm.when() <= deadline):
            return
        self._cancel_alarm()
        self._alarm = asyncio.get_running_loop().call_at(deadline, self._ring_alarm)

    def _ring_alarm(self) -> None:
        self._alarm = None
        self._tell()

    def _cancel_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _slice(self) -> Iterator[None]:
        """As often as one step may read from a socket."""
        end = time.perf_counter() + READ_S
        for _ in range(0, self._limits.drain_batches, MOST):
            yield
            if time.perf_counter() > end:
                return

    def _ring(self) -> None:
        self._tell()

    def _close_sockets(self) -> None:
        self._replay.close()
        self._subscription.close()
