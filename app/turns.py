"""Who works on the loop when: background work gets a slice of each round of the loop, requests get the rest."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

SLICE_S = 0.001
"""For all background work of a round together. A request waits for about one slice."""


class Turn:
    """One kind of work's place in the queue. `ended` raises what the work raised; it has no turns any more then."""

    def __init__(self, turns: Turns, work: Callable[[float], bool]) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns = turns
        self._work = work
        self._queued = False

    def ask(self) -> None:
        """There is something to do."""
        if not self._queued and not self.ended.done():
            self._queued = True
            self._turns.enter(self)

    def go(self, end: float) -> None:
        """Work until `end`."""
        self._queued = False
        if self.ended.done():
            return
        try:
            more = self._work(end)
        except Exception as error:
            self.ended.set_exception(error)
        else:
            if more:
                self.ask()

    def __enter__(self) -> Turn:
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.cancel()


class Turns:
    """Slices for work that is synchronous and could go on for long. First come, first served.

    A round of the loop is what it runs before it looks at its sockets again.
    """

    def __init__(self) -> None:
        self._queue: deque[Turn] = deque()
        self._due = False

    def of(self, work: Callable[[float], bool]) -> Turn:
        """A place for `work`, used as a context that it lasts for.

        `work` is called after each `ask` with the time of `time.perf_counter` to end at; it may always do one small
        piece. It returns whether it needs another turn, which comes after everybody else's.
        """
        return Turn(self, work)

    def enter(self, turn: Turn) -> None:
        """To the end of the queue."""
        self._queue.append(turn)
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._round)

    def _round(self) -> None:
        end = time.perf_counter() + SLICE_S
        while self._queue and time.perf_counter() < end:
            self._queue.popleft().go(end)
        self._due = bool(self._queue)
        if self._due:
            asyncio.get_running_loop().call_soon(self._round)
