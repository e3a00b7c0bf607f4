"""Requests by id, each in the book of the worker it was sent to: bounded and expiring."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING

import msgspec

from index.native import CORE
from index.worker import Worker
from router.recent import Recent
from router.settings import RouterSettings

if TYPE_CHECKING:
    from types import ModuleType

    from index import _core
    from router.assignment_book import Book

MOST_ID_BYTES = 31
"""Of a request's id, in UTF-8; the router's own have 26."""
_COST_STEPS = 2.0**32
"""Costs are whole multiples of 1 / _COST_STEPS: their sums are exact, so adding and taking away leaves no remainder."""


class _Logged(msgspec.Struct, gc=False):
    """A request and where it stands. Many are kept: the garbage collector need not see them."""

    worker: Worker
    at: float
    book: Book
    number: int
    note: object


class RequestLog:
    """At most `limit` requests, each for `ttl_s`; the oldest give way. Times in seconds never go back.

    Deeds return the workers in whose books something changed, None where the id is not known.
    """

    def __init__(self, limit: int, ttl_s: float, least_cost: float) -> None:
        self._limit = limit
        self._ttl_s = ttl_s
        self._least_cost = least_cost
        self._requests = Recent[_Logged]()

    def __len__(self) -> int:
        return len(self._requests)

    def add(  # noqa: PLR0917 - the native one is called by position
        self,
        request_id: str,
        worker: Worker,
        book: Book,
        at: float,
        weight: float,
        prompt: int,
        reusable: int,
        note: object,
    ) -> Sequence[Worker]:
        """A request was sent to `worker`: `prompt` tokens (0 when not known), of which it reuses `reusable`.

        `note` is kept for `take_note`. An id that is there already is replaced. Returns the workers of requests that
        gave way. Raises ValueError for one that is longer than `MOST_ID_BYTES`.
        """
        if len(request_id.encode()) > MOST_ID_BYTES:
            raise ValueError(f"a request's id must have at most {MOST_ID_BYTES} bytes")
        requests, changed = self._requests, list[Worker]()
        if request_id in requests:
            self._drop(request_id, changed)
        cost = max(1 - reusable / prompt if prompt else 1.0, self._least_cost)
        cost = round(cost * _COST_STEPS) / _COST_STEPS
        number = book.add(at, cost, max(prompt - reusable, 0), 1 / weight)
        requests.add(request_id, _Logged(worker, at, book, number, note))
        while len(requests) > self._limit and (oldest := requests.oldest()) is not None:
            self._drop(oldest, changed)
        return changed

    def end_prefill(self, request_id: str) -> Sequence[Worker] | None:
        """The request's prefill is done; saying so twice does no harm."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        return [request.worker] if request.book.end_prefill(request.number) else []

    def end(self, request_id: str) -> Sequence[Worker] | None:
        """The request is over; saying so twice does no harm. Its id stays known."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        return [request.worker] if request.book.end(request.number) else []

    def take_note(self, request_id: str) -> object:
        """What `add` was given to keep, once; None afterwards, and for an id that is not known."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        note, request.note = request.note, None
        return note

    def expire(self, now: float) -> Sequence[Worker]:
        """Drop the requests that are `ttl_s` old."""
        changed: list[Worker] = []
        while now - self.oldest_at >= self._ttl_s and (oldest := self._requests.oldest()) is not None:
            self._drop(oldest, changed)
        return changed

    @property
    def oldest_at(self) -> float:
        """When the oldest request came; infinite when there is none."""
        oldest = self._requests.oldest()
        request = None if oldest is None else self._requests.get(oldest)
        return inf if request is None else request.at

    def _drop(self, request_id: str, changed: list[Worker]) -> None:
        request = self._requests.pop(request_id)
        if request is not None and request.book.end(request.number):
            changed.append(request.worker)


def request_log(settings: RouterSettings, module: ModuleType | None = CORE.module) -> RequestLog | _core.RequestLog:
    """An empty log, in the core that serves unless another is given."""
    bounds = settings.request_limit, settings.request_ttl_s, settings.warm_request_cost
    if module is None:
        return RequestLog(*bounds)
    log: _core.RequestLog = module.RequestLog(*bounds)
    return log
