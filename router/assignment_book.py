"""One worker's assigned requests: which of them run, and what they come to."""

from __future__ import annotations

from collections import deque
from math import exp2, inf
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from index.native import CORE
from router.settings import RouterSettings

if TYPE_CHECKING:
    from types import ModuleType

    from index import _core


class Seen(NamedTuple):
    """One worker's requests: the cost of the unfinished new ones, how many are unfinished, their tokens to be computed.

    `oldest`, `oldest_new` and `oldest_prefill`: when the first of the unfinished, of the new and of those that wait for
    their first token was assigned; infinite where none was.
    """

    cost: float
    running: int
    prefill: int
    oldest: float
    oldest_new: float
    oldest_prefill: float


NOTHING = Seen(0.0, 0, 0, inf, inf, inf)


class _Request(msgspec.Struct, gc=False, eq=False):
    """`cost` is its weight as load (0..1), `prefill` the prompt tokens to be computed before its first one."""

    at: float
    cost: float
    prefill: int
    finished: bool = False
    prefilled: bool = False


class AssignmentBook:
    """Requests by number, from 0 in the order they came; times in seconds never go back.

    A request runs until it is ended or `ttl_s` old; its prefill, if that is not ended before, for `prefill_ttl_s`.
    `share` is the count of assignments per weight as of the last one, at `last`; it halves every `half_life_s`.
    """

    def __init__(self, ttl_s: float, prefill_ttl_s: float, half_life_s: float) -> None:
        self.share = 0.0
        self.last = -inf
        self._ttl_s = ttl_s
        self._prefill_ttl_s = prefill_ttl_s
        self._half_life_s = half_life_s
        self._requests: deque[_Request] = deque()
        self._first = 0
        """The number of the oldest request that is kept."""
        self._new: deque[_Request] = deque()
        self._since = inf
        self._cost = 0.0
        self._prefills: deque[_Request] = deque()
        self._running = 0
        self._prefill = 0

    def add(self, at: float, cost: float, prefill: int, one: float) -> int:
        """One more request; `one` is what it adds to the share. Returns its number."""
        self._expire(at)
        request = _Request(at, cost, prefill)
        self._requests.append(request)
        self._prefills.append(request)
        if at >= self._since:
            self._new.append(request)
            self._cost += cost
        self._running += 1
        self._prefill += prefill
        self.share, self.last = self.faded(at) + one, at
        return self._first + len(self._requests) - 1

    def end(self, number: int) -> bool:
        """The request is over. False: it was before."""
        request = self._of(number)
        return request is not None and self._end(request)

    def end_prefill(self, number: int) -> bool:
        """The request's prefill is done. False: it was before."""
        request = self._of(number)
        return request is not None and self._end_prefill(request)

    def seen(self, now: float, since: float) -> tuple[float, int, int, float, float, float]:
        """What counts as load, as a `Seen` has it; requests at or after `since` are new."""
        self._expire(now)
        if since < self._since:
            self._recount(since)
        self._since = since
        new, prefills = self._new, self._prefills
        while new and (new[0].at < since or new[0].finished):
            request = new.popleft()
            if not request.finished:
                self._cost -= request.cost
        return (
            self._cost,
            self._running,
            self._prefill,
            self._requests[0].at if self._requests else inf,
            new[0].at if new else inf,
            prefills[0].at if prefills else inf,
        )

    def prefill_tokens(self, now: float) -> int:
        """Prompt tokens to be computed by requests whose prefill is not done."""
        self._expire(now)
        return self._prefill

    def faded(self, now: float) -> float:
        """The share as it counts now."""
        return self.share * exp2((self.last - now) / self._half_life_s) if self.share else 0.0

    def _of(self, number: int) -> _Request | None:
        return self._requests[number - self._first] if number >= self._first else None

    def _end(self, request: _Request) -> bool:
        self._end_prefill(request)
        if request.finished:
            return False
        request.finished = True
        self._running -= 1
        if request.at >= self._since:
            self._cost -= request.cost
        return True

    def _end_prefill(self, request: _Request) -> bool:
        if request.prefilled:
            return False
        request.prefilled = True
        self._prefill -= request.prefill
        return True

    def _expire(self, now: float) -> None:
        requests, oldest = self._requests, now - self._ttl_s
        while requests and (requests[0].finished or requests[0].at <= oldest):
            self._end(requests.popleft())
            self._first += 1
        prefills = self._prefills
        while prefills and (prefills[0].prefilled or now - prefills[0].at >= self._prefill_ttl_s):
            self._end_prefill(prefills.popleft())

    def _recount(self, since: float) -> None:
        """Start over where `since` went back: requests that were let go of count again."""
        self._new.clear()
        for request in reversed(self._requests):
            if request.at < since:
                break
            self._new.appendleft(request)
        self._cost = sum(request.cost for request in self._new if not request.finished)


if TYPE_CHECKING:
    Book = AssignmentBook | _core.AssignmentBook
    """Of either core."""


def new_book(settings: RouterSettings, module: ModuleType | None = CORE.module) -> Book:
    """An empty book, in the core that serves unless another is given."""
    limits = settings.assignment_ttl_s, settings.prefill_ttl_s, settings.spread_half_life_s
    if module is None:
        return AssignmentBook(*limits)
    book: _core.AssignmentBook = module.AssignmentBook(*limits)
    return book
