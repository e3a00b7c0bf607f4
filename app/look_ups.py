"""Looks at what engines serve for names that nobody is known to serve: at once, shared, and for a bounded time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from app.instance import Instance

WAIT_S = 1.2
"""How long a request waits at most for a look at the engines that could have what it names."""
MAX_WAITING = 64
"""Requests that wait at the same time; further ones are answered from what is known."""
LATELY_S = 2.0
"""What an engine listed so long ago is read again when a request names an adapter that it did not list."""

Look = Callable[[str], "asyncio.Future[None] | None"]
"""Ask for a look at an instance, by id; done when one that begins from now on is over. None: it is not watched."""


class LookUps:
    """How often an engine is really asked is for its watch to say, however many requests want it."""

    def __init__(self) -> None:
        self.look: Look = lambda instance_id: None
        self._waiting = 0

    async def wait(self, instances: Iterable[Instance], known: Callable[[], bool]) -> None:
        """Until one of the instances is known to have what is looked for, or all were looked at, or time is over."""
        pending = {look for one in instances if one.reachable is not False and (look := self.look(one.id)) is not None}
        if self._waiting >= MAX_WAITING:
            return
        self._waiting += 1
        loop = asyncio.get_running_loop()
        end = loop.time() + WAIT_S
        try:
            while pending and not known() and (left_s := end - loop.time()) > 0:
                _, pending = await asyncio.wait(pending, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiting -= 1

    def soon(self, instances: Iterable[Instance], now: float) -> None:
        """Have those looked at that were not lately; nobody waits."""
        for one in instances:
            if one.reachable is not False and (one.listed_at is None or now - one.listed_at > LATELY_S):
                self.look(one.id)
