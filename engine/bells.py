"""Which sockets may have something to read: all their files are watched in one place, and looked at now and then."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable

PAUSE_S = 0.001
"""After a look, until the next one. What comes first is read at once; on a busy stream several messages at a time:
a wake-up for each would cost more than the message."""


class Bells:
    """Calls back when a file can be read, once per look, and again until it is read. Needs a loop with `add_reader`.

    It holds a file of its own as long as it watches others.
    """

    def __init__(self) -> None:
        self._selector: selectors.DefaultSelector | None = None
        self._pause: asyncio.TimerHandle | None = None

    def watch(self, file: int, ring: Callable[[], None]) -> None:
        """Call `ring` when `file` can be read. To be called once per file, which must be forgotten before it closes."""
        if self._selector is None:
            self._selector = selectors.DefaultSelector()
            self._listen()
        self._selector.register(file, selectors.EVENT_READ, ring)

    def forget(self, file: int) -> None:
        """Watch a file no longer."""
        assert self._selector is not None
        self._selector.unregister(file)
        if not self._selector.get_map():
            self._close()

    def _listen(self) -> None:
        assert self._selector is not None
        asyncio.get_running_loop().add_reader(self._selector.fileno(), self._first)

    def _first(self) -> None:
        """Something came after a time of silence."""
        assert self._selector is not None
        asyncio.get_running_loop().remove_reader(self._selector.fileno())
        self._look()

    def _look(self) -> None:
        assert self._selector is not None
        found = self._selector.select(0)
        if found:
            self._pause = asyncio.get_running_loop().call_later(PAUSE_S, self._look)
        else:
            self._pause = None
            self._listen()
        for key, _ in found:
            key.data()

    def _close(self) -> None:
        assert self._selector is not None
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        else:
            asyncio.get_running_loop().remove_reader(self._selector.fileno())
        self._selector.close()
        self._selector = None
