"""Whether the state store failed lately: what its failures are to somebody who asks, between two tries."""

from __future__ import annotations

import time
from collections.abc import Callable

from store.state import StateError

FRESH_S = 12.0
"""Tries are at most 4 s and a time limit (2 s by default) apart, so a store that stays ill fails more often."""


class StoreFailures:
    """The latest failure of one user of the store."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: tuple[float, StateError] | None = None

    def note(self, error: StateError) -> None:
        """An operation failed."""
        self._last = self._clock(), error

    def fresh(self, longest_call_s: float) -> StateError | None:
        """The latest failure; None when it was so long ago that a store still ill would have failed again."""
        if self._last is None:
            return None
        at, error = self._last
        return error if self._clock() - at < FRESH_S + longest_call_s else None
