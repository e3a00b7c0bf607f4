"""Own assignments: what this router sent where, until it is reported as finished or has expired."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from math import exp2, inf
from typing import NamedTuple

from index.worker import Worker
from router.changes import Changes
from router.settings import RouterSettings

_COST_STEPS = 2.0**32
"""Costs are whole multiples of 1 / _COST_STEPS: their sums are exact, so adding and taking away leaves no remainder."""


@dataclass(slots=True, eq=False)
class _Request:
    """One assigned request: `cost` is its weight as load (0..1), `prefill` the prompt tokens to be computed."""

    worker: Worker
    at: float
    cost: float
    prefill: int
    finished: bool = False


@dataclass(slots=True)
class _Book:
    """One worker's requests, oldest first, and its faded count of assignments as of `last`.

    `recent` are those assigned at or after `since`; `cost` is the sum over the unfinished ones of them.
    """

    requests: deque[_Request] = field(default_factory=deque)
    recent: deque[_Request] = field(default_factory=deque)
    since: float = inf
    cost: float = 0.0
    prefills: OrderedDict[_Request, None] = field(default_factory=OrderedDict)
    running: int = 0
    prefill: int = 0
    share: float = 0.0
    last: float = -inf


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


_NOTHING = Seen(0.0, 0, 0, inf, inf, inf)


class Assignments:
    """Requests by id and by worker, everything bounded and expiring (see `RouterSettings`).

    Time moves with `advance` and with every report; reading is as of the last of these. A time before an earlier one is
    taken as that one. `changes` names the workers whose numbers a report or an expiry changed.
    """

    def __init__(self, settings: RouterSettings) -> None:
        self.changes = Changes[Worker]()
        self._settings = settings
        self._requests: OrderedDict[str, _Request] = OrderedDict()
        self._books: dict[Worker, _Book] = {}
        self._now = -inf
        self._last_finish = -inf
        self._last_first_token = -inf

    def __len__(self) -> int:
        return len(self._requests)

    def advance(self, now: float) -> None:
        """It is `now`."""
        self._now = max(self._now, now)
        ttl_s = self._settings.request_ttl_s
        while self._requests:
            oldest = next(iter(self._requests))
            if self._now - self._requests[oldest].at < ttl_s:
                return
            self._drop_request(oldest)

    def add(self, request_id: str, worker: Worker, *, weight: float, prompt: int, reusable: int, now: float) -> None:
        """A request was sent to `worker`: `prompt` tokens (0 when not known), of which it reuses `reusable`."""
        self.advance(now)
        if request_id in self._requests:
            self._drop_request(request_id)
        cost = max(1 - reusable / prompt if prompt else 1.0, self._settings.warm_request_cost)
        cost = round(cost * _COST_STEPS) / _COST_STEPS
        request = self._requests[request_id] = _Request(worker, self._now, cost, max(prompt - reusable, 0))
        book = self._book(worker)
        book.requests.append(request)
        if request.at >= book.since:
            book.recent.append(request)
            book.cost += cost
        book.running += 1
        book.prefills[request] = None
        book.prefill += request.prefill
        book.share = self._faded(book) + 1 / weight
        book.last = self._now
        self.changes.note(worker)
        while len(self._requests) > self._settings.request_limit:
            self._drop_request(next(iter(self._requests)))

    def first_token(self, request_id: str, now: float) -> bool:
        """The request's prefill is done. False: the id is unknown or expired."""
        self.advance(now)
        request = self._requests.get(request_id)
        if request is None:
            return False
        self._last_first_token = self._now
        self._end_prefill(request)
        return True

    def finished(self, request_id: str, now: float) -> bool:
        """The request is over; saying so twice does no harm. False: the id is unknown or expired."""
        self.advance(now)
        request = self._requests.get(request_id)
        if request is None:
            return False
        self._last_finish = self._now
        self._end(request)
        return True

    @property
    def now(self) -> float:
        """The time that numbers are read as of."""
        return self._now

    @property
    def ends_reported(self) -> bool:
        """Whether ends of requests are being reported, so that the count of running ones means something."""
        return self._now - self._last_finish < self._settings.assignment_ttl_s

    @property
    def first_tokens_reported(self) -> bool:
        """Whether first tokens are being reported, so that the prefill tokens in flight mean something."""
        return self._now - self._last_first_token < self._settings.assignment_ttl_s

    def seen(self, worker: Worker, since: float) -> Seen:
        """What counts as the worker's load, with its requests at or after `since` counted as new."""
        book = self._books.get(worker)
        if book is None:
            return _NOTHING
        self._expire(book)
        if since < book.since:
            _recount(book, since)
        book.since = since
        requests, recent = book.requests, book.recent
        while recent and recent[0].at < since:
            request = recent.popleft()
            if not request.finished:
                book.cost -= request.cost
        oldest, oldest_new = requests[0].at if requests else inf, recent[0].at if recent else inf
        oldest_prefill = next(iter(book.prefills)).at if book.prefills else inf
        return Seen(book.cost, book.running, book.prefill, oldest, oldest_new, oldest_prefill)

    def prefill_tokens(self, worker: Worker) -> int:
        """Prompt tokens to be computed by requests whose first token is not reported."""
        book = self._current(worker)
        return 0 if book is None else book.prefill

    def share(self, worker: Worker) -> tuple[float, float]:
        """The faded count of assignments per weight, and when the last was made (-inf: never). The lesser is due."""
        book = self._books.get(worker)
        return (0.0, -inf) if book is None else (self._faded(book), book.last)

    def share_then(self, worker: Worker) -> tuple[float, float]:
        """The count as it was when the last was made, and when that was. It stays until `changes` names the worker."""
        book = self._books.get(worker)
        return (0.0, -inf) if book is None else (book.share, book.last)

    def forget(self, worker: Worker) -> None:
        """Drop the worker's load and share. Its request ids stay reportable until they expire."""
        book = self._books.pop(worker, None)
        for request in book.requests if book else ():
            request.finished = True
        self.changes.note(worker)

    def _current(self, worker: Worker) -> _Book | None:
        book = self._books.get(worker)
        if book is not None:
            self._expire(book)
        return book

    def _expire(self, book: _Book) -> None:
        oldest = self._now - self._settings.assignment_ttl_s
        while book.requests and (book.requests[0].finished or book.requests[0].at <= oldest):
            self._end(book.requests.popleft())
        while book.prefills:
            request = next(iter(book.prefills))
            if self._now - request.at < self._settings.prefill_ttl_s:
                return
            self._end_prefill(request)

    def _faded(self, book: _Book) -> float:
        return book.share * exp2((book.last - self._now) / self._settings.spread_half_life_s) if book.share else 0.0

    def _book(self, worker: Worker) -> _Book:
        book = self._books.get(worker)
        if book is None:
            self._drop_idle_books()
            book = self._books[worker] = _Book()
        self._expire(book)
        return book

    def _drop_idle_books(self) -> None:
        idle = self._now - max(self._settings.request_ttl_s, 10 * self._settings.spread_half_life_s)
        for worker in [worker for worker, book in self._books.items() if book.last < idle]:
            del self._books[worker]
            self.changes.note(worker)

    def _drop_request(self, request_id: str) -> None:
        request = self._requests.pop(request_id, None)
        if request is not None:
            self._end(request)

    def _end(self, request: _Request) -> None:
        self._end_prefill(request)
        if request.finished:
            return
        request.finished = True
        book = self._books.get(request.worker)
        if book is not None:
            book.running -= 1
            if request.at >= book.since:
                book.cost -= request.cost
            self.changes.note(request.worker)

    def _end_prefill(self, request: _Request) -> None:
        book = self._books.get(request.worker)
        if book is not None and request in book.prefills:
            del book.prefills[request]
            book.prefill -= request.prefill
            self.changes.note(request.worker)


def _recount(book: _Book, since: float) -> None:
    """Start over where `since` went back: requests that were let go of count again."""
    book.recent.clear()
    for request in reversed(book.requests):
        if request.at < since:
            break
        book.recent.appendleft(request)
    book.cost = sum(request.cost for request in book.recent if not request.finished)
