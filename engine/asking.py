"""When to ask a worker's publisher for a replay: retries with back-off, the time limits of an answer, idle probes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from engine.stream import ListenerLimits


class Ask(NamedTuple):
    """A replay request that should be under way. Each has an `id` of its own, so that late answers are told apart."""

    id: int
    start: int


class Asking:
    """At most one replay request at a time, and the time of the next.

    A request is *hunting* when batches are known to be missing (or nothing is known yet): only then a fruitless one
    counts. The others are probes: after a handshake, for what was published before the subscription took effect,
    and on a silent stream, for a tail that the publisher dropped.
    """

    def __init__(self, limits: ListenerLimits, jitter: Callable[[], float]) -> None:
        self._limits = limits
        self._jitter = jitter
        self._last_id = 0
        self._hunting = False
        self._answer_until = 0.0
        self._again_at: float | None = None
        self._settle_at: float | None = None
        self._silent_since: float | None = None
        self._idle_s = limits.idle_s
        self.current: Ask | None = None
        self.fruitless = 0
        self.progressed = False
        self._unanswered = False

    def send(self, start: int, now: float, hunting: bool) -> None:
        """Ask for everything from `start` on."""
        self._last_id += 1
        self.current = Ask(self._last_id, start)
        self.progressed = False
        self._unanswered = True
        self._hunting = hunting
        self._again_at = None
        if self._settle_at is not None and now >= self._settle_at:
            self._settle_at = None
        elif self._silent_since is not None and now >= self._silent_since + self._idle_s:
            self._idle_s = min(self._idle_s * 2, self._limits.idle_max_s)
        self._answer_until = now + self._limits.first_answer_s

    def answered(self, now: float) -> None:
        """A batch of the answer came: the next one has its own limit."""
        self._unanswered = False
        self._answer_until = now + self._limits.next_answer_s

    def finish(self) -> None:
        """The answer is over, by its end marker or by time."""
        self.current = None
        if self.progressed:
            self.fruitless = 0
        elif self._hunting:
            self.fruitless += 1

    @property
    def exhausted(self) -> bool:
        """Whether asking again would be pointless."""
        return self.fruitless >= self._limits.fruitless_asks

    def again(self, now: float) -> None:
        """Ask again: at once after progress, else after a back-off."""
        wait_s = self._limits.backoff_s * (2 ** (self.fruitless - 1)) * (1 + self._jitter()) if self.fruitless else 0.0
        self._again_at = now + wait_s

    def settle(self, now: float) -> None:
        """The socket was (re)connected: probe when the subscription has surely taken effect."""
        self._settle_at = now + self._limits.settle_s
        self._silent_since = now
        self._idle_s = self._limits.idle_s

    def live(self, now: float) -> None:
        """A live batch came: the stream is not silent, and what the subscription missed before shows as a gap."""
        self._settle_at = None
        if self._silent_since is not None:
            self._silent_since = now
            self._idle_s = self._limits.idle_s

    def rest(self, now: float) -> None:
        """Nothing is missing: the next probe comes after a silence, longer each time."""
        self.fruitless = 0
        if self._silent_since is not None:
            self._silent_since = now

    def forget(self) -> None:
        """Give up the request under way and the count of fruitless ones; probes go on."""
        self.current = None
        self._again_at = None
        self.fruitless = 0

    def stop(self) -> None:
        """Ask nothing more until `settle`."""
        self.forget()
        self._settle_at = None
        self._silent_since = None

    def expired(self, now: float) -> bool:
        """Whether the answer under way has taken too long."""
        return self.current is not None and now >= self._answer_until

    def due(self, now: float) -> bool:
        """Whether it is time for the next request."""
        next_at = self._next_at()
        return self.current is None and next_at is not None and now >= next_at

    def outdated(self, start: int) -> bool:
        """Whether the request under way asks for more than is missing from `start` on, and nothing came of it yet."""
        return self.current is not None and self.current.start < start and self._unanswered

    @property
    def settled(self) -> bool:
        """Whether the subscription has surely taken effect: a batch came, or what it may have missed was asked for."""
        return self._settle_at is None

    @property
    def waiting(self) -> bool:
        """Whether a request is under way or a repeated one is planned."""
        return self.current is not None or self._again_at is not None

    def deadline(self) -> float | None:
        """When `expired` or `due` may turn true without any message."""
        return self._answer_until if self.current is not None else self._next_at()

    def _next_at(self) -> float | None:
        if self._again_at is not None:
            return self._again_at
        if self._settle_at is not None:
            return self._settle_at
        return None if self._silent_since is None else self._silent_since + self._idle_s
