"""One instance watched: what it offers is discovered, every rank's events are followed, its load is read."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

import structlog

from app.following import Following
from app.instance import Instance, TrackedWorker
from app.surroundings import Surroundings
from engine.discovery import EngineUnreachable, discover
from engine.facts import EngineFacts
from engine.load import EngineLoad, of_ranks, read_load
from engine.wire import sglang_usable
from index.worker import EngineKind, Trust

_log = structlog.stdlib.get_logger("kvroute.watch")

TRIED_AFTER_S = 3.0
"""How long an instance that does not answer keeps the service from being ready."""
FOLLOW_AFTER_S = 1.0
"""How long the first look at an engine may hold back its event streams."""
POLL_COST_S = 0.01
"""About what asking one engine costs this process."""
LOOK_AGAIN_S = 0.5
"""Least time between two discoveries, however many reasons there are for one."""


class Watch:
    """The tasks of one instance. `run` ends only by cancellation (the instance is removed, or the process stops)."""

    def __init__(self, instance: Instance, around: Surroundings) -> None:
        self._instance = instance
        self._around = around
        self._look_again = asyncio.Event()
        self._looked = asyncio.Event()
        self._following = Following(instance, around, self._look_again.set)

    def enter(self) -> None:
        """Make the instance's workers known to the index."""
        for tracked in self._instance.workers.values():
            self._following.enter(tracked)

    def leave(self) -> None:
        """Free everything the instance's workers hold. To be called when `run` has ended."""
        for tracked in self._instance.workers.values():
            self._around.index.remove(tracked.worker)

    def follow_anew(self, rank: int) -> None:
        """Take a rank's state from the state store, where a better one lies."""
        self._following.follow_anew(rank)

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._be_tried())
            tasks.create_task(self._repeat(lambda: self._look(tasks), self._until_discovery))
            tasks.create_task(self._follow_soon(tasks))
            tasks.create_task(self._repeat(self._read_load, self._until_load))

    async def _follow_soon(self, tasks: asyncio.TaskGroup) -> None:
        """Adapters' paths should be known before their blocks come; an engine that does not tell is followed too."""
        try:
            async with asyncio.timeout(FOLLOW_AFTER_S):
                await self._looked.wait()
        except TimeoutError:
            pass
        self._following.update(tasks)

    async def _look(self, tasks: asyncio.TaskGroup) -> None:
        await self._discover(tasks)
        self._looked.set()

    async def _be_tried(self) -> None:
        await asyncio.sleep(TRIED_AFTER_S)
        self._instance.tried = True

    async def _repeat(self, step: Callable[[], Awaitable[None]], wait: Callable[[], Awaitable[None]]) -> None:
        while True:
            await step()
            await wait()

    async def _until_load(self) -> None:
        await asyncio.sleep(max(self._around.settings.polling.load_interval_s, self._share_s))

    @property
    def _share_s(self) -> float:
        """What a round over the whole fleet takes: a large one is asked less often, not all the time."""
        return POLL_COST_S * len(self._around.fleet)

    async def _until_discovery(self) -> None:
        """The interval, shorter while the engine does not answer or when its events show something new."""
        interval_s = self._around.settings.polling.discovery_interval_s
        least_s = min(interval_s, LOOK_AGAIN_S)
        await asyncio.sleep(least_s)
        try:
            soon_s = interval_s if self._instance.reachable else min(interval_s, max(1.0, 2 * self._share_s))
            async with asyncio.timeout(soon_s - least_s):
                await self._look_again.wait()
        except TimeoutError:
            pass
        self._look_again.clear()

    # Discovery

    async def _discover(self, tasks: asyncio.TaskGroup) -> None:
        instance, own = self._instance, self._instance.settings
        try:
            async with self._around.polls:
                facts = await discover(
                    self._around.client, instance.address, self._around.settings.polling.timeout_s, own.model
                )
        except EngineUnreachable as error:
            level = logging.DEBUG if instance.reachable is False else logging.WARNING
            self._reached(False)
            _log.log(level, "engine does not answer", instance=own.id, error=str(error))
            return
        self._reached(True)
        facts = joined(instance.facts, facts)
        if facts != instance.facts:
            self._learn(facts)
        else:
            self._following.confirm()
        self._following.update(tasks)
        instance.tried = instance.tried or not (own.events or facts.events)

    def _learn(self, facts: EngineFacts) -> None:
        instance, former = self._instance, self._instance.facts
        instance.facts = facts
        self._around.fleet.changed()
        if instance.settings.engine is EngineKind.VLLM:
            self._around.adapters.know(instance.settings.model, facts.adapters)
        else:
            self._judge_release(facts.version)
        other = _other_process(former, facts)
        if other:
            self._following.told_process(facts.fingerprint)
            if facts.dp_size and instance.settings.rank_count is None:
                self._following.drop_ranks(facts.dp_size)
        self._following.learn(anew=other)
        if facts.warning and facts.warning != former.warning:
            _log.warning("engine advice", instance=instance.id, advice=facts.warning)

    def _judge_release(self, version: str | None) -> None:
        instance = self._instance
        was, instance.unusable = instance.unusable, sglang_usable(version or "")
        if instance.unusable is not None and was is None:
            for tracked in instance.workers.values():
                self._around.index.restart(tracked.worker)
                self._around.began(tracked.worker)
                tracked.trust = Trust.NONE
            _log.error("instance refused", instance=instance.id, advice=instance.unusable)
        elif instance.unusable is None and was is not None:
            self._following.use()

    def _reached(self, reachable: bool) -> None:
        instance = self._instance
        if reachable:
            instance.unreachable_since = None
        elif instance.reachable:
            instance.unreachable_since = time.monotonic()
        instance.reachable = reachable

    # Load

    async def _read_load(self) -> None:
        instance, loads = self._instance, dict[int, EngineLoad]()
        if instance.reachable is not False:
            timeout_s = self._around.settings.polling.timeout_s
            async with self._around.polls:
                loads = await read_load(self._around.client, instance.address, timeout_s, instance.own_names)
        loads = of_ranks(loads, [instance.facts.own_rank(rank) for rank in range(len(instance.workers))])
        now = time.monotonic()
        only = next(iter(loads.values())) if len(loads) == len(self._instance.workers) == 1 else None
        for rank, tracked in self._instance.workers.items():
            self._take_load(tracked, loads.get(rank, only), now)

    def _take_load(self, tracked: TrackedWorker, load: EngineLoad | None, now: float) -> None:
        """A sleeping engine holds nothing. It sleeps until it says otherwise."""
        tracked.load, tracked.load_at = load, now if load is not None else None
        if load is None or load.asleep is None:
            return
        if load.asleep and not tracked.asleep:
            self._around.index.clear(tracked.worker)
            self._around.discard(tracked.worker)
            self._around.metrics.reset(tracked.worker, "asleep")
            tracked.resets["asleep"] += 1
        tracked.asleep = load.asleep


def joined(known: EngineFacts, told: EngineFacts) -> EngineFacts:
    """What is known now. A process that did not answer every question this time has not changed."""
    if _other_process(known, told):
        return told
    cards = told if told.models or told.adapters else known
    streams = known if told.unauthorized and not told.events else told
    return told._replace(
        version=told.version or known.version,
        block_size=told.block_size or known.block_size,
        dp_size=told.dp_size or known.dp_size,
        prefix_match_unit=told.prefix_match_unit or known.prefix_match_unit,
        fingerprint=told.fingerprint or known.fingerprint,
        adapters=cards.adapters,
        models=cards.models,
        roots=cards.roots,
        events=streams.events,
        replay=streams.replay,
        topic=streams.topic,
        ranks=told.ranks or known.ranks,
        hash_algorithm=told.hash_algorithm or known.hash_algorithm,
        dynamo_format=known.dynamo_format if told.dynamo_format is None else told.dynamo_format,
    )


def _other_process(known: EngineFacts, told: EngineFacts) -> bool:
    return None not in (known.fingerprint, told.fingerprint) and known.fingerprint != told.fingerprint
