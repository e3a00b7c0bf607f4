"""Who works on the loop when: background work gets a slice of each round of the loop, requests get the rest."""

from __future__ import annotations

import asyncio
import time

SLICE_S = 0.001
"""For all background work of a round together. A request waits for about one slice."""


class Turns:
    """Slices for work that is synchronous and could go on for long. First come, first served.

    A round of the loop is what it runs before it looks at its sockets again.
    """

    def __init__(self) -> None:
        self._queue = asyncio.Lock()
        self._end: float | None = None
        """When this round's slice ends; None while nobody has begun it."""

    async def turn(self) -> float:
        """Wait for a slice. It ends when `time.perf_counter` says what is returned; work that goes on needs another."""
        async with self._queue:
            while self._end is not None and time.perf_counter() >= self._end:  # noqa: ASYNC110 - rounds are no events
                await asyncio.sleep(0)
            if self._end is None:
                self._end = time.perf_counter() + SLICE_S
                asyncio.get_running_loop().call_soon(self._next_round)
            return self._end

    def _next_round(self) -> None:
        self._end = None
