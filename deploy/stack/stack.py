"""All services of the stack together."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from rich.table import Table

from deploy.stack.failure import StackFailed
from deploy.stack.program import Program
from deploy.stack.supervised import Supervised

_LOOK_S = 0.1
_COLOURS = {"starting": "yellow", "healthy": "green", "unhealthy": "red"}


class Stack:
    """The running services, by name."""

    def __init__(self, programs: Sequence[Program]) -> None:
        self.services = {program.name: Supervised(program) for program in programs}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """All services run inside the block; none does after it, however it ends."""
        async with asyncio.TaskGroup() as tasks:
            owned = [tasks.create_task(service.run()) for service in self.services.values()]
            try:
                yield
            finally:
                for task in owned:
                    task.cancel()

    def url(self, service: str) -> str:
        """Where a service's first port is found."""
        return f"http://{self.services[service].program.addresses[0]}"

    async def healthy(self, limit_s: float) -> float:
        """Wait until every health check is green; the seconds that it took. StackFailed after the limit."""
        began = time.monotonic()
        while waiting := [one for one in self.services.values() if one.health != "healthy"]:
            if time.monotonic() - began > limit_s:
                words = "\n\n".join(f"{one.program.name}: {one.health}\n{one.last_words()}" for one in waiting)
                raise StackFailed(f"not healthy within {limit_s:g} s:\n{words}")
            await asyncio.sleep(_LOOK_S)
        return time.monotonic() - began

    def table(self) -> Table:
        """Names, addresses and health as they are now."""
        table = Table(box=None, pad_edge=False)
        for heading in ("service", "address", "further ports", "health", "restarts"):
            table.add_column(heading)
        for name, one in self.services.items():
            first, *further = one.program.addresses
            ports = " ".join(address.rpartition(":")[2] for address in further)
            health = f"[{_COLOURS[one.health]}]{one.health}[/]"
            names = ", ".join((name, *one.program.aliases))
            table.add_row(names, first, ports, health, str(max(0, one.starts - 1)))
        return table

    def describe(self, file: Path) -> None:
        """Write the same for programs: JSON, by service: pid, addresses, health, starts."""
        shown = {
            name: {"pid": one.pid, "addresses": one.program.addresses, "health": one.health, "starts": one.starts}
            for name, one in self.services.items()
        }
        written = file.with_suffix(".new")
        written.write_text(json.dumps(shown))
        written.replace(file)
