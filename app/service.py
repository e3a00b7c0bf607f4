"""The running service: every object of the process, and the tasks that watch the instances."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

import structlog

from app.instance import Instance
from app.instance_settings import InstanceSettings
from app.problems import Problem
from app.routing import Routing
from app.settings import Settings
from app.state import State, registered
from app.surroundings import Surroundings
from app.watch import Watch
from index.native import CORE
from index.worker import EngineKind, Worker
from store.state import RegisteredInstance

_log = structlog.stdlib.get_logger("kvroute.service")

REMOVAL_S = 5.0
STORED_S = 1.0
"""How long a change of the fleet waits for the state store before it is answered; it is told later then."""


@dataclass(slots=True)
class Service:
    """Owns the instances' tasks. A task that ends unexpectedly ends the process: a deaf router is worse than none."""

    settings: Settings
    around: Surroundings
    routing: Routing
    failed: bool = False
    state: State | None = None
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _watches: dict[str, Watch] = field(default_factory=dict)
    _state_tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _changing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def start(self) -> None:
        """Open the state store, then watch every configured instance."""
        self.routing.suspect = self._suspect
        self.routing.look_ups.look = self._look_now
        _log.info("core", core=CORE.name, reason=CORE.reason)
        if self.settings.state.get_secret_value() != "memory://":
            self.state = State.opened(self.settings, self.around, self)
            self.around.writer = self.state.writer
        for settings in self.settings.instances:
            self._watch(settings, "file")
        if self.state is not None:
            self.state.writer.adopt = self._follow_anew
            self._state_tasks = self.state.start()
            for task in self._state_tasks:
                task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """End every task; sockets are closed when it returns."""
        tasks = [*self._tasks.values(), *self._state_tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()
        if self.state is not None:
            await self.state.close()

    async def add(self, settings: InstanceSettings) -> tuple[Instance, bool]:
        """Take in an instance: (instance, True), or (the same one, False). Raises Problem 409 for other values."""
        async with self._changing:
            known = self.around.fleet.get(settings.id)
            if known is not None and known.settings != settings:
                raise Problem(409, "an instance with this id exists with other values", field="id")
            if known is not None:
                return known, False
            instance = self._watch(settings, "http")
            told = self.state.registry.put(registered(instance)) if self.state is not None else None
        if told is not None:
            await _stored(told)
        return instance, True

    async def remove(self, instance_id: str) -> None:
        """Forget an instance and its blocks, here and on all replicas; late events do not bring them back.

        Raises Problem 404.
        """
        async with self._changing:
            instance = self.instance(instance_id)
            await self._discard(instance)
            told = self.state.registry.delete(instance_id) if self.state is not None else None
        if told is not None:
            await _stored(told)

    async def drain(self, instance_id: str, draining: bool) -> None:
        """No new requests for an instance, or again; on all replicas. Raises Problem 404."""
        self.instance(instance_id).draining = draining
        if self.state is not None:
            await _stored(self.state.registry.drain(instance_id, draining))

    # What other replicas change (app/registry.py: Members)

    def listed(self) -> dict[str, RegisteredInstance]:
        """Every instance there is."""
        return {one.id: registered(one) for one in self.around.fleet}

    async def put(self, settings: InstanceSettings) -> None:
        """Add an instance, or replace the one with its id."""
        async with self._changing:
            known = self.around.fleet.get(settings.id)
            if known is not None and known.settings == settings:
                return
            if known is not None:
                await self._discard(known, stored_too=False)
            self._watch(settings, "http")

    async def discard(self, instance_id: str) -> None:
        """Remove an instance, and what is stored of its workers, if it is there."""
        async with self._changing:
            known = self.around.fleet.get(instance_id)
            if known is not None:
                await self._discard(known)

    def drained(self, instance_id: str, draining: bool) -> None:
        """Set an instance's draining flag if it is there."""
        known = self.around.fleet.get(instance_id)
        if known is not None:
            known.draining = draining

    async def _discard(self, instance: Instance, stored_too: bool = True) -> None:
        instance_id = instance.id
        self.around.fleet.remove(instance_id)
        task = self._tasks.pop(instance_id)
        task.cancel()
        await asyncio.wait({task}, timeout=REMOVAL_S)
        self._watches.pop(instance_id).leave()
        for tracked in instance.workers.values():
            self.routing.router.forget(tracked.worker)
            if stored_too:
                self.around.discard(tracked.worker)
            else:
                self.around.forget(tracked.worker)
        self.around.metrics.forget_instance(instance_id)
        model = instance.settings.model
        if not self.around.fleet.of_model(model):
            self.around.metrics.forget_model(model)
            self.around.adapters.forget(model)
        if not any(one.settings.engine is EngineKind.VLLM for one in self.around.fleet.of_model(model)):
            self.around.identities.forget(model)
        _log.info("instance removed", instance=instance_id)

    def _look_now(self, instance_id: str) -> asyncio.Future[None] | None:
        watch = self._watches.get(instance_id)
        return None if watch is None else watch.look_now()

    def _follow_anew(self, worker: Worker) -> None:
        watch = self._watches.get(worker.instance)
        if watch is not None:
            watch.follow_anew(worker.dp_rank)

    def _suspect(self, instance_id: str, why: str) -> None:
        watch = self._watches.get(instance_id)
        if watch is not None:
            watch.suspect(why)

    def instance(self, instance_id: str) -> Instance:
        """An instance by its id. Raises Problem 404."""
        instance = self.around.fleet.get(instance_id)
        if instance is None:
            raise Problem(404, "there is no instance with this id", field="id")
        return instance

    def waiting(self) -> list[str]:
        """What is neither reached nor given up on for now: instances, and the state store."""
        waiting = [one.id for one in self.around.fleet if not one.tried]
        return waiting if self.state is None or self.state.registry.ready else [*waiting, "the state store"]

    def store(self) -> dict[str, object] | None:
        """How the state store is, as JSON; None when nothing outlives the process."""
        if self.state is None:
            return None
        failure = self.state.failure(self.settings.state_store.call_timeout_s)
        if failure is None:
            return {"ok": True, "op": None, "reason": None}
        return {"ok": False, "op": failure.op, "reason": failure.reason}

    @property
    def healthy(self) -> bool:
        """Whether every task lives."""
        return not self.failed and not any(task.done() for task in (*self._tasks.values(), *self._state_tasks))

    def _watch(self, settings: InstanceSettings, source: Literal["file", "http"]) -> Instance:
        instance = self.around.fleet.add(settings, source)
        watch = self._watches[settings.id] = Watch(instance, self.around)
        watch.enter()
        task = asyncio.create_task(watch.run(), name=f"watch {settings.id}")
        task.add_done_callback(self._ended)
        self._tasks[settings.id] = task
        _log.info("instance added", instance=settings.id, engine=settings.engine.value, model=settings.model)
        return instance

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is None and task.cancelled():
            return
        self.failed = True
        _log.critical("a task died, the process ends", task=task.get_name(), exc_info=error)
        os.kill(os.getpid(), signal.SIGTERM)


async def _stored(told: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(STORED_S):
            await told.wait()
