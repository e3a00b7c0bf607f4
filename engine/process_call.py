"""The call that asks an engine which process it is, as a sequence wants it: at most one, in a task, limited in time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from engine.sequence import Sequence


class ProcessCall:
    """Asks `fingerprint`; an error, None or no answer within `timeout_s` count as unknown. `ring` is called then."""

    def __init__(
        self,
        fingerprint: Callable[[], Awaitable[str | None]],
        timeout_s: float,
        sequence: Sequence,
        ring: Callable[[], None],
    ) -> None:
        self._fingerprint = fingerprint
        self._timeout_s = timeout_s
        self._sequence = sequence
        self._ring = ring
        self._tasks: set[asyncio.Task[None]] = set()
        self._inquiry = 0

    def make(self) -> None:
        """Make the call under way the one that is wanted."""
        wanted = self._sequence.inquiry
        if wanted == self._inquiry:
            return
        self._cancel()
        if wanted is not None:
            self._inquiry = wanted
            task = asyncio.create_task(self._ask(wanted))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        """Give up the call under way."""
        self._cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _ask(self, inquiry: int) -> None:
        fingerprint = None
        try:
            async with asyncio.timeout(self._timeout_s):
                fingerprint = await self._fingerprint()
        except Exception:  # noqa: S110 - whatever went wrong, the answer is: unknown
            pass
        self._sequence.verdict(inquiry, fingerprint, asyncio.get_running_loop().time())
        self._ring()
