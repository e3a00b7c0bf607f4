"""The running service: every object of the process, and the tasks that watch the instances."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass, field

import structlog

from app.fleet import Instance
from app.instance_settings import InstanceSettings
from app.problems import Problem
from app.routing import Routing
from app.settings import Settings
from app.surroundings import Surroundings
from app.watch import Watch
from index.worker import EngineKind

_log = structlog.stdlib.get_logger("kvroute.service")

REMOVAL_S = 5.0


@dataclass(slots=True)
class Service:
    """Owns the instances' tasks. A task that ends unexpectedly ends the process: a deaf router is worse than none."""

    settings: Settings
    around: Surroundings
    routing: Routing
    failed: bool = False
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _watches: dict[str, Watch] = field(default_factory=dict)
    _changing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def start(self) -> None:
        """Watch every configured instance."""
        for settings in self.settings.instances:
            self._watch(settings)

    async def stop(self) -> None:
        """End every task; sockets are closed when it returns."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()

    async def add(self, settings: InstanceSettings) -> tuple[Instance, bool]:
        """Take in an instance: (instance, True), or (the same one, False). Raises Problem 409 for other values."""
        async with self._changing:
            known = self.around.fleet.get(settings.id)
            if known is None:
                return self._watch(settings), True
            if known.settings != settings:
                raise Problem(409, "an instance with this id exists with other values", field="id")
            return known, False

    async def remove(self, instance_id: str) -> None:
        """Forget an instance and its blocks; late events do not bring them back. Raises Problem 404."""
        async with self._changing:
            instance = self.instance(instance_id)
            self.around.fleet.remove(instance_id)
            task = self._tasks.pop(instance_id)
            task.cancel()
            await asyncio.wait({task}, timeout=REMOVAL_S)
            self._watches.pop(instance_id).leave()
            for tracked in instance.workers.values():
                self.routing.router.forget(tracked.worker)
            self.around.metrics.forget_instance(instance_id)
            model = instance.settings.model
            if not self.around.fleet.of_model(model):
                self.around.metrics.forget_model(model)
                self.around.adapters.forget(model)
            if not any(one.settings.engine is EngineKind.VLLM for one in self.around.fleet.of_model(model)):
                self.around.identities.forget(model)
            _log.info("instance removed", instance=instance_id)

    def instance(self, instance_id: str) -> Instance:
        """An instance by its id. Raises Problem 404."""
        instance = self.around.fleet.get(instance_id)
        if instance is None:
            raise Problem(404, "there is no instance with this id", field="id")
        return instance

    def waiting(self) -> list[str]:
        """The instances that were neither reached nor given up on for now."""
        return [one.id for one in self.around.fleet if not one.tried]

    @property
    def healthy(self) -> bool:
        """Whether every task lives."""
        return not self.failed and not any(task.done() for task in self._tasks.values())

    def _watch(self, settings: InstanceSettings) -> Instance:
        instance = self.around.fleet.add(settings)
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
