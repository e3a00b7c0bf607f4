"""The instances that replicas share: what this one changes is told, what others change is taken over."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol, assert_never

import structlog
from pydantic import ValidationError

from app.instance_settings import InstanceSettings
from app.metrics import Metrics
from store.state import (
    Change,
    Deleted,
    Drained,
    Lost,
    Put,
    RegisteredInstance,
    Reread,
    StateError,
    StateStore,
)

_log = structlog.stdlib.get_logger("kvroute.registry")

RETRY_S, RETRY_MAX_S = 0.2, 5.0
WAITING_CHANGES = 10_000


class Members(Protocol):
    """The fleet as the registry changes it."""

    def listed(self) -> dict[str, RegisteredInstance]:
        """Every instance there is."""

    async def put(self, settings: InstanceSettings) -> None:
        """Add an instance, or replace the one with its id."""

    async def discard(self, instance_id: str) -> None:
        """Remove an instance if it is there."""

    def drained(self, instance_id: str, draining: bool) -> None:
        """Set an instance's draining flag if it is there."""


@dataclass(slots=True)
class Registry:
    """Two tasks, one each way. `ready` is set when the registry was read, or could not be at first."""

    store: StateStore
    members: Members
    metrics: Metrics
    ready: bool = False
    _waiting: deque[Callable[[], Awaitable[None]]] = field(default_factory=deque)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, instance: RegisteredInstance) -> None:
        """Tell the others of an instance, soon."""
        self._tell(lambda: self.store.put_instance(instance))

    def delete(self, instance_id: str, forget: Callable[[], Awaitable[None]]) -> None:
        """Tell the others that an instance is gone; `forget` deletes its state."""

        async def both() -> None:
            await self.store.delete_instance(instance_id)
            await forget()

        self._tell(both)

    def drain(self, instance_id: str, draining: bool) -> None:
        """Tell the others that an instance drains, or does not any more."""
        self._tell(lambda: self.store.set_draining(instance_id, draining))

    async def run(self) -> None:
        """Both ways, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._send())
            tasks.create_task(self._take())

    def _tell(self, change: Callable[[], Awaitable[None]]) -> None:
        if len(self._waiting) >= WAITING_CHANGES:
            self._waiting.popleft()
            self.metrics.state_errors.labels("registry_overflow").inc()
        self._waiting.append(change)
        self._wake.set()

    async def _send(self) -> None:
        pause_s = RETRY_S
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                try:
                    await self._waiting[0]()
                except StateError as error:
                    self._failed(error)
                    await asyncio.sleep(pause_s * (1 + random.random()))  # noqa: S311
                    pause_s = min(pause_s * 2, RETRY_MAX_S)
                else:
                    self._waiting.popleft()
                    pause_s = RETRY_S

    async def _take(self) -> None:
        pause_s, read = RETRY_S, False
        while True:
            try:
                if not read:
                    await self._reconcile(await self.store.instances(), deletions=False)
                    read = self.ready = True
                    pause_s = RETRY_S
                async for change in self.store.changes():
                    await self._apply(change)
            except StateError as error:
                self._failed(error)
                self.ready = True  # it was tried: routing does not wait for the store
                await asyncio.sleep(pause_s * (1 + random.random()))  # noqa: S311
                pause_s = min(pause_s * 2, RETRY_MAX_S)

    async def _reconcile(self, stored: dict[str, RegisteredInstance], deletions: bool) -> None:
        """Take over what is registered, and register what is not. This replica's file wins over the registry.

        `deletions`: what is not registered (and not in this replica's file) was deleted while changes were missed. An
        empty registry deletes nothing: it was lost.
        """
        listed = self.members.listed()
        for instance in stored.values():
            known = listed.get(instance.id)
            if known is None or (known.source != "file" and known.settings != instance.settings):
                await self._put(instance)
            self.members.drained(instance.id, instance.draining)
        for instance in listed.values():
            if instance.id not in stored:
                if instance.source == "http" and deletions and stored:
                    await self.members.discard(instance.id)
                else:
                    self.put(instance)
            elif instance.source == "file" and stored[instance.id].settings != instance.settings:
                self.put(instance)

    async def _apply(self, change: Change) -> None:
        match change:
            case Put(instance):
                known = self.members.listed().get(instance.id)
                if known is None or known.settings != instance.settings:
                    await self._put(instance)
                self.members.drained(instance.id, instance.draining)
            case Deleted(instance_id):
                await self.members.discard(instance_id)
            case Drained(instance_id, draining):
                self.members.drained(instance_id, draining)
            case Reread():
                await self._reconcile(await self.store.instances(), deletions=True)
            case Lost():
                for listed in self.members.listed().values():
                    self.put(listed)
            case _:
                assert_never(change)

    async def _put(self, instance: RegisteredInstance) -> None:
        try:
            settings = InstanceSettings.model_validate(dict(instance.settings))
        except ValidationError as error:
            _log.warning("registered instance not used", instance=instance.id, faults=error.error_count())
            return
        await self.members.put(settings)

    def _failed(self, error: StateError) -> None:
        self.metrics.state_errors.labels(error.op).inc()
        _log.warning("state store", op=error.op, reason=error.reason)
