"""The state store of a running service: the writer, the registry, and their tasks."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog

from app.instance import Instance
from app.registry import Members, Registry
from app.settings import Settings
from app.state_writer import StateWriter
from app.surroundings import Surroundings
from store.state import RegisteredInstance, StateError, StateStore
from store.state_url import open_store, shown_url

_log = structlog.stdlib.get_logger("kvroute.state")

DRAIN_S = 2.0
"""How long the end of the process waits for what is not written yet."""


@dataclass(slots=True)
class State:
    """What of the process outlives it."""

    store: StateStore
    writer: StateWriter
    registry: Registry

    @classmethod
    def opened(cls, settings: Settings, around: Surroundings, members: Members) -> State:
        """The store of the settings. Needs a running event loop; connects when it is first asked."""
        url = settings.state.get_secret_value()
        store = open_store(url, settings.state_store.limits())
        _log.info("state store", url=shown_url(url))
        writer = StateWriter(store, around.index, around.metrics, settings.state_store.writer())
        return cls(store, writer, Registry(store, members, around.metrics, lost=writer.check_soon))

    def start(self) -> list[asyncio.Task[None]]:
        """The tasks. They end by cancellation only."""
        return [
            asyncio.create_task(self._write(), name="write state"),
            asyncio.create_task(self.registry.run(), name="share instances"),
        ]

    def failure(self, longest_call_s: float) -> StateError | None:
        """What the store failed at lately; None when it works. `longest_call_s` is the time limit of a call."""
        return self.writer.failures.fresh(longest_call_s) or self.registry.failures.fresh(longest_call_s)

    async def close(self) -> None:
        """Write what can be written in a short time; let go of the store."""
        await self.writer.drain(DRAIN_S)
        await self.store.close()

    async def _write(self) -> None:
        try:
            await self.store.open()
        except StateError as error:
            _log.warning("state store", op=error.op, reason=error.reason)
        await self.writer.run()


def registered(instance: Instance) -> RegisteredInstance:
    """An instance as replicas share it, with its key: each of them asks the engine."""
    own = instance.settings
    settings = own.model_dump(mode="json", exclude={"api_key", "api_key_file"})
    if own.api_key is not None:
        settings["api_key"] = own.api_key.get_secret_value()
    if own.api_key_file is not None:  # null would be a key that earlier releases do not know
        settings["api_key_file"] = own.api_key_file
    return RegisteredInstance(instance.id, settings, instance.source, instance.draining)
