"""A consumer of a real listener, for tests: what it was told, what it holds, and waits for either."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import zmq
import zmq.asyncio

from engine.listener import (
    Batch,
    Clear,
    Listener,
    ListenerLimits,
    Position,
    Resumed,
    Signal,
    Source,
)
from index.worker import Trust
from tests.support.publisher import Publisher

LIMITS = ListenerLimits(first_answer_s=0.4, next_answer_s=0.4, settle_s=0.15, idle_s=0.3, idle_max_s=1.0)
EXACT, PARTIAL = Trust.EXACT, Trust.PARTIAL


@dataclass
class Follower:
    """A consumer of a listener: what it was told, and what it holds since the last Clear."""

    listener: Listener
    signals: list[Signal] = field(default_factory=list)
    held: list[Batch] = field(default_factory=list)
    trust: Trust | None = None
    told: asyncio.Event = field(default_factory=asyncio.Event)
    delay_s: float = 0.0

    async def run(self) -> None:
        async for signals in self.listener:
            for signal in signals:
                self.signals.append(signal)
                if isinstance(signal, Clear):
                    self.held, self.trust = [], signal.trust
                elif isinstance(signal, Batch):
                    assert not self.held or signal.seq == self.held[-1].seq + 1
                    self.held.append(signal)
                    if self.delay_s:
                        await asyncio.sleep(self.delay_s)
            self.told.set()

    async def until(self, true: Callable[[], bool], timeout_s: float = 10.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not true():
                self.told.clear()
                await self.told.wait()

    async def holds(self, *seqs: int, timeout_s: float = 10.0) -> None:
        try:
            await self.until(lambda: [b.seq for b in self.held] == list(seqs), timeout_s)
        except TimeoutError:
            raise AssertionError(f"holds {[b.seq for b in self.held][:20]}, not {seqs[:20]}") from None

    @property
    def verdicts(self) -> list[Resumed | Clear]:
        """What was said of all that is held."""
        return [s for s in self.signals if isinstance(s, Resumed | Clear)]

    @property
    def clears(self) -> list[str]:
        return [f"{s.reason}:{s.trust}" for s in self.signals if isinstance(s, Clear)]


async def unknown() -> str | None:
    return None


def tells(fingerprint: str | None) -> Callable[[], Awaitable[str | None]]:
    async def told() -> str | None:
        return fingerprint

    return told


@asynccontextmanager
async def following(
    context: zmq.asyncio.Context,
    source: Source,
    fingerprint: Callable[[], Awaitable[str | None]] = unknown,
    limits: ListenerLimits = LIMITS,
    resume: Position | None = None,
) -> AsyncIterator[Follower]:
    async with Listener(context, source, limits, fingerprint, resume) as listener:
        follower = Follower(listener)
        task = asyncio.create_task(follower.run())
        try:
            yield follower
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def source_of(publisher: Publisher) -> Source:
    return Source(publisher.events, publisher.replay, publisher.topic)


async def subscribed(publisher: Publisher, count: int = 1) -> None:
    await asyncio.to_thread(publisher.wait_for_subscriber, 10, count)
