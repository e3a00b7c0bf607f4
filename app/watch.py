"""One instance watched: what it offers is discovered, every rank's events are followed, its load is read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import httpx
import structlog
import zmq
import zmq.asyncio

from app.fleet import Fleet, Instance, TrackedWorker
from app.identities import Identities
from app.ingest import WorkerIngest
from app.metrics import Metrics
from app.settings import Settings
from engine.discovery import EngineUnreachable, discover, fingerprint
from engine.endpoint import host_of, rank_endpoint
from engine.facts import EngineFacts
from engine.listener import Listener, ListenerLimits, Source
from engine.load import read_load
from engine.wire import sglang_usable
from index.index import Index
from index.pool import WorkerSpec
from index.worker import EngineKind, Trust

_log = structlog.stdlib.get_logger("kvroute.watch")

TRIED_AFTER_S = 3.0
"""How long an instance that does not answer keeps the service from being ready."""
SLICE_S = 0.005
"""How long a backlog of batches is applied before requests get their turn."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every watched instance shares."""

    settings: Settings
    limits: ListenerLimits
    fleet: Fleet
    index: Index
    identities: Identities
    metrics: Metrics
    client: httpx.AsyncClient
    context: zmq.asyncio.Context


class Watch:
    """The tasks of one instance. `run` ends only by cancellation (the instance is removed, or the process stops)."""

    def __init__(self, instance: Instance, around: Surroundings) -> None:
        self._instance = instance
        self._around = around
        self._following: set[int] = set()

    def enter(self) -> None:
        """Make the instance's workers known to the index."""
        for tracked in self._instance.workers.values():
            self._around.index.add(tracked.worker, self._spec())

    def leave(self) -> None:
        """Free everything the instance's workers hold. To be called when `run` has ended."""
        for tracked in self._instance.workers.values():
            self._around.index.remove(tracked.worker)

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._be_tried())
            self._follow_ranks(tasks)
            tasks.create_task(self._repeat(lambda: self._discover(tasks), self._discovery_interval))
            tasks.create_task(self._repeat(self._read_load, self._load_interval))

    def _spec(self) -> WorkerSpec:
        own = self._instance.settings
        unit = own.prefix_match_unit if own.prefix_match_unit is not None else self._instance.facts.prefix_match_unit
        return WorkerSpec(own.model, own.engine, own.speculative == "eagle", unit)

    async def _be_tried(self) -> None:
        await asyncio.sleep(TRIED_AFTER_S)
        self._instance.tried = True

    async def _repeat(self, step: Callable[[], Awaitable[None]], interval: Callable[[], float]) -> None:
        while True:
            await step()
            await asyncio.sleep(interval())

    def _discovery_interval(self) -> float:
        return self._around.settings.polling.discovery_interval_s if self._instance.reachable else 1.0

    def _load_interval(self) -> float:
        return self._around.settings.polling.load_interval_s

    # Discovery

    async def _discover(self, tasks: asyncio.TaskGroup) -> None:
        instance, own = self._instance, self._instance.settings
        try:
            facts = await discover(self._around.client, own.engine, own.url, self._around.settings.polling.timeout_s)
        except EngineUnreachable as error:
            self._reached(False)
            _log.debug("engine does not answer", instance=own.id, error=str(error))
            return
        self._reached(True)
        if facts != instance.facts:
            self._learn(facts)
        self._follow_ranks(tasks)
        instance.tried = instance.tried or not (own.events or facts.events)

    def _learn(self, facts: EngineFacts) -> None:
        instance = self._instance
        first = instance.facts.version is None
        instance.facts = facts
        self._around.fleet.changed()
        for tracked in instance.workers.values():
            self._around.index.respec(tracked.worker, self._spec())
            self._around.index.hint(tracked.worker, facts.dynamo_format, facts.adapters)
        if facts.warning and first:
            _log.warning("engine advice", instance=instance.id, advice=facts.warning)
        if instance.settings.engine is EngineKind.SGLANG and facts.version:
            self._refuse(sglang_usable(facts.version))

    def _refuse(self, reason: str | None) -> None:
        for tracked in self._instance.workers.values():
            if reason is not None and not tracked.refused:
                self._around.index.restart(tracked.worker)
                tracked.refused, tracked.trust, tracked.advice = True, Trust.NONE, reason
                _log.error("instance refused", instance=self._instance.id, advice=reason)

    def _reached(self, reachable: bool) -> None:
        instance = self._instance
        if reachable:
            instance.unreachable_since = None
        elif instance.reachable:
            instance.unreachable_since = time.monotonic()
        instance.reachable = reachable

    # Events

    def _follow_ranks(self, tasks: asyncio.TaskGroup) -> None:
        """Start following each rank whose endpoint is known and which is not followed yet."""
        instance, own = self._instance, self._instance.settings
        ranks = own.dp_size or instance.facts.dp_size or max([1, *(rank + 1 for rank in instance.facts.events)])
        for rank in range(ranks):
            source = self._source(rank)
            if rank not in instance.workers:
                self._around.index.add(self._around.fleet.add_worker(instance, rank).worker, self._spec())
            if source is not None and rank not in self._following:
                self._following.add(rank)
                self._note_stream(instance.workers[rank], source)
                tasks.create_task(self._follow(instance.workers[rank], source))

    def _note_stream(self, tracked: TrackedWorker, source: Source) -> None:
        tracked.stream = (source.events, source.topic)
        others = self._around.fleet.sharing(tracked)
        if others:
            names = ", ".join(sorted({other.instance for other in others}))
            tracked.stream_advice = (
                f"{source.events} is also the event endpoint of {names}: one stream cannot be told from the other; "
                "give every engine an endpoint or a topic of its own"
            )
            _log.error("event endpoint shared", instance=tracked.worker.instance, advice=tracked.stream_advice)

    def _source(self, rank: int) -> Source | None:
        own, facts = self._instance.settings, self._instance.facts
        host = host_of(own.url)
        events = rank_endpoint(own.events, rank, host) if own.events else facts.events.get(rank)
        if events is None:
            return None
        replay = rank_endpoint(own.replay, rank, host) if own.replay else facts.replay.get(rank)
        return Source(events, replay, own.topic or (facts.topic or "" if not own.events else ""))

    async def _follow(self, tracked: TrackedWorker, source: Source) -> None:
        around, own = self._around, self._instance.settings
        identity = around.identities.of(own.model) if own.engine is EngineKind.VLLM else None
        listener = Listener(around.context, source, around.limits, self._fingerprint)
        ingest = WorkerIngest(
            self._instance,
            tracked,
            around.index,
            around.metrics,
            identity=identity,
            enforce=around.identities.enforced(own.model),
            resync=listener.resync,
        )
        try:
            await self._take_all(listener, ingest, tracked)
        except zmq.ZMQError as error:
            tracked.advice = f"the event endpoint {source.events} cannot be used: {error}"
            _log.error("event endpoint cannot be used", instance=own.id, endpoint=source.events, error=str(error))

    async def _take_all(self, listener: Listener, ingest: WorkerIngest, tracked: TrackedWorker) -> None:
        async with listener:
            async for signals in listener:
                began = time.perf_counter()
                for signal in signals:
                    ingest.take(signal)
                    if time.perf_counter() - began > SLICE_S:
                        await asyncio.sleep(0)
                        began = time.perf_counter()
                self._instance.tried = self._instance.tried or tracked.link_up

    async def _fingerprint(self) -> str | None:
        own = self._instance.settings
        return await fingerprint(self._around.client, own.engine, own.url, self._around.settings.polling.timeout_s)

    # Load

    async def _read_load(self) -> None:
        own = self._instance.settings
        loads = await read_load(self._around.client, own.engine, own.url, self._around.settings.polling.timeout_s)
        now = time.monotonic()
        only = next(iter(loads.values())) if len(loads) == len(self._instance.workers) == 1 else None
        for rank, tracked in self._instance.workers.items():
            load = loads.get(rank, only)
            tracked.load, tracked.load_at = load, now if load is not None else None
            asleep = bool(load is not None and load.asleep)
            if asleep and not tracked.asleep:
                self._around.index.clear(tracked.worker)
                self._around.metrics.reset(tracked.worker, "asleep")
                tracked.resets["asleep"] += 1
            tracked.asleep = asleep
