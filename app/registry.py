"""The instances that replicas share: what this one changes is told, what others change is taken over."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol, assert_never

import structlog
from pydantic import ValidationError

from app.instance_settings import InstanceSettings
from app.logs import Repeats
from app.metrics import Metrics
from app.store_failures import StoreFailures
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

RETRY_S, RETRY_MAX_S = 0.2, 2.0
WAITING_CHANGES = 10_000


class Members(Protocol):
    """The fleet as the registry changes it."""

    def listed(self) -> dict[str, RegisteredInstance]:
        """Every instance there is."""

    async def put(self, settings: InstanceSettings) -> None:
        """Add an instance, or replace the one with its id."""

    async def discard(self, instance_id: str) -> None:
        """Remove an instance, and what is stored of its workers, if it is there."""

    def drained(self, instance_id: str, draining: bool) -> None:
        """Set an instance's draining flag if it is there."""


class _Telling(NamedTuple):
    """A change of this replica that the store does not have yet."""

    instance_id: str
    tell: Callable[[], Awaitable[None]]
    told: asyncio.Event


class Registry:
    """Two tasks, one each way. `ready` is set when the registry was read, or could not be at first.

    A file is a replica's own: records that come from a file tell who is drained, but make no instance on replicas whose
    file does not list it, nor other settings where it lists others. So what is taken out of the file stays out.
    """

    def __init__(self, store: StateStore, members: Members, metrics: Metrics, lost: Callable[[], None]) -> None:
        """`lost` is told that the store lost the registry, and perhaps more."""
        self.ready = False
        self.failures = StoreFailures()
        self._store = store
        self._members = members
        self._metrics = metrics
        self._lost = lost
        self._waiting: deque[_Telling] = deque()
        self._wake = asyncio.Event()
        self._one_way = asyncio.Lock()
        self._repeats = Repeats(10.0)

    def put(self, instance: RegisteredInstance) -> asyncio.Event:
        """Tell the others of an instance, soon. The event is set when the store has it."""
        return self._tell(instance.id, lambda: self._store.put_instance(instance))

    def delete(self, instance_id: str) -> asyncio.Event:
        """Tell the others that an instance is gone."""
        return self._tell(instance_id, lambda: self._store.delete_instance(instance_id))

    def drain(self, instance_id: str, draining: bool) -> asyncio.Event:
        """Tell the others that an instance drains, or does not any more."""
        return self._tell(instance_id, lambda: self._store.set_draining(instance_id, draining))

    async def run(self) -> None:
        """Both ways, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._send())
            tasks.create_task(self._take())

    def _tell(self, instance_id: str, tell: Callable[[], Awaitable[None]]) -> asyncio.Event:
        if len(self._waiting) >= WAITING_CHANGES:
            self._waiting.popleft()
            self._metrics.state_errors.labels("registry_overflow").inc()
        telling = _Telling(instance_id, tell, asyncio.Event())
        self._waiting.append(telling)
        self._wake.set()
        return telling.told

    async def _send(self) -> None:
        pause_s = RETRY_S
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                try:
                    async with self._one_way:
                        first = self._waiting[0]
                        await first.tell()
                        first.told.set()
                        if self._waiting and self._waiting[0] is first:
                            self._waiting.popleft()
                    pause_s = RETRY_S
                except StateError as error:
                    pause_s = await self._failed(error, pause_s)

    async def _take(self) -> None:
        """The whole registry once, then its changes for ever: after an error they go on where they stopped."""
        pause_s, read = RETRY_S, False
        while True:
            try:
                if not read:
                    await self._reconcile(first=True)
                read = self.ready = True
                async for change in self._store.changes():
                    pause_s = RETRY_S
                    await self._apply(change)
            except StateError as error:
                self.ready = True  # it was tried: routing does not wait for the store
                pause_s = await self._failed(error, pause_s)

    async def _reconcile(self, first: bool) -> None:
        """Take over what is registered, and register what is not. What this replica is about to tell stands."""
        async with self._one_way:
            stored = await self._store.instances()
            told = {telling.instance_id for telling in self._waiting}
        for instance in stored.values():
            if instance.id not in told:
                await self._take_over(instance)
        for listed in self._members.listed().values():
            await self._register(listed, stored.get(listed.id), first or listed.id in told)

    async def _register(self, listed: RegisteredInstance, stored: RegisteredInstance | None, new: bool) -> None:
        if stored is None and listed.source == "http" and not new:
            await self._members.discard(listed.id)  # deleted while this replica was away
        elif stored is None or (listed.source == "file" and stored.settings != listed.settings):
            self.put(listed)

    async def _apply(self, change: Change) -> None:
        match change:
            case Put(instance):
                await self._take_over(instance)
            case Deleted(instance_id):
                await self._members.discard(instance_id)
            case Drained(instance_id, draining):
                self._members.drained(instance_id, draining)
            case Reread():
                await self._reconcile(first=False)
            case Lost():
                self._lost()
                for listed in self._members.listed().values():
                    self.put(listed)
            case _:
                assert_never(change)

    async def _take_over(self, instance: RegisteredInstance) -> None:
        known = self._members.listed().get(instance.id)
        mine = (known is not None and known.source == "file") or (known is None and instance.source == "file")
        if not mine and (known is None or known.settings != instance.settings):
            await self._put(instance)
        self._members.drained(instance.id, instance.draining)

    async def _put(self, instance: RegisteredInstance) -> None:
        try:
            settings = InstanceSettings.model_validate(dict(instance.settings))
        except ValidationError as error:
            _log.warning("registered instance not used", instance=instance.id, faults=error.error_count())
            return
        await self._members.put(settings)

    async def _failed(self, error: StateError, pause_s: float) -> float:
        """Count, wait, and how long to wait the next time."""
        self.failures.note(error)
        self._metrics.state_errors.labels(error.op).inc()
        if (held_back := self._repeats.due(error.op)) is not None:
            _log.warning("state store", op=error.op, reason=error.reason, held_back=held_back)
        await asyncio.sleep(pause_s * (1 + random.random()))  # noqa: S311
        return min(pause_s * 2, RETRY_MAX_S)
