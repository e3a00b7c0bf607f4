"""One data-parallel rank: a cache, its scheduler, what computes for it, and the publisher of its events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from deploy.engine.cache import KVCache
from deploy.engine.compute import Compute
from deploy.engine.event_wire import EventForm, batch
from deploy.engine.events import EventPublisher
from deploy.engine.latencies import Latencies
from deploy.engine.request import Output, Request
from deploy.engine.scheduler import Scheduler, Work


class QueueFull(Exception):
    """As many requests wait as may."""


class RankDead(Exception):
    """What computes has died (`Rank.die`)."""


@dataclass(frozen=True)
class EventTiming:
    """When events leave. vLLM: after every step. SGLang (`publish_kv_events`): after prefills, after every so many
    decode steps, and when there is nothing to do."""

    decode_interval: int = 1
    when_idle: bool = False


class Rank:
    """Runs requests; `run` has to be a task while they do."""

    def __init__(
        self,
        number: int,
        scheduler: Scheduler,
        compute: Compute,
        publisher: EventPublisher | None,
        form: EventForm,
        timing: EventTiming,
        max_waiting: int | None = None,
    ) -> None:
        self.number = number
        self.scheduler = scheduler
        self.publisher = publisher
        self._compute = compute
        self._form = form
        self._timing = timing
        self._max_waiting = max_waiting
        self.first_token_s = Latencies()
        self.end_s = Latencies()
        self._paused = False
        self._decode_steps = 0
        self._wake = asyncio.Event()
        self._is_dead = False
        self._outputs: dict[Request, asyncio.Queue[Output | None]] = {}

    @property
    def cache(self) -> KVCache:
        """Its KV cache."""
        return self.scheduler.cache

    async def generate(self, request: Request) -> AsyncGenerator[Output, None]:
        """The outputs of a request, one per sampled token. Ending the iteration early aborts it. QueueFull at once;
        RankDead when it dies, at once when it has."""
        if self._is_dead:
            raise RankDead
        if self._max_waiting is not None and len(self.scheduler.waiting) >= self._max_waiting:
            raise QueueFull
        outputs = self._outputs[request] = asyncio.Queue()
        self.scheduler.add(request)
        self._wake.set()
        try:
            while True:
                output = await outputs.get()
                if output is None:
                    raise RankDead
                self._time(request, output)
                yield output
                if output.finish is not None:
                    return
        finally:
            del self._outputs[request]
            self.scheduler.abort(request)
            self._wake.set()

    def pause(self) -> None:
        """Abort all requests and plan no further step until `resume`. Requests that come meanwhile wait."""
        self._paused = True
        for request, outputs in self._outputs.items():
            if request.finish is None:
                self.scheduler.abort(request)
                outputs.put_nowait(Output(None, "", "abort"))

    def resume(self) -> None:
        """Go on after `pause`."""
        self._paused = False
        self._wake.set()

    def die(self) -> None:
        """End all requests with RankDead, and refuse those that come."""
        self._is_dead = True
        for outputs in self._outputs.values():
            outputs.put_nowait(None)

    def clear(self) -> bool:
        """Empty the cache; False while requests hold KV. The event leaves as the timing says."""
        cleared = not self.scheduler.waiting and self.cache.clear()
        if self._timing.when_idle:
            self._wake.set()
        return cleared

    async def run(self) -> None:
        """Step by step, until cancelled.

        A step's events leave when the next one is planned, and with its events: the engines plan a step before they
        look at what the one before has brought.
        """
        works: list[Work] = []
        while True:
            former, works = works, [] if self._paused else self.scheduler.plan()
            if former:
                self._publish_after(former)
            if not works:
                await self._idle()
                continue
            tokens = await self._compute.run(works)
            for request, output in self.scheduler.done(works, tokens):
                if request in self._outputs:
                    self._outputs[request].put_nowait(output)

    def _time(self, request: Request, output: Output) -> None:
        passed_s = time.monotonic() - request.arrived_s
        if len(request.output) == 1:
            self.first_token_s.add(passed_s)
        if output.finish is not None:
            self.end_s.add(passed_s)

    async def _idle(self) -> None:
        if self._timing.when_idle:
            self._publish()
        self._wake.clear()
        await self._wake.wait()

    def _publish_after(self, works: list[Work]) -> None:
        if all(work.decode for work in works):
            self._decode_steps += 1
            if self._decode_steps % self._timing.decode_interval:
                return
        self._publish()

    def _publish(self) -> None:
        """One batch with all events since the last one; none when there are none."""
        events = self.cache.take_events()
        if events and self.publisher is not None:
            self.publisher.publish(batch(time.time(), events, self.number, self._form))
