"""Own assignments: what this router sent where, until it is reported as finished or has expired."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import msgspec

from index.worker import Worker
from router.assignment_book import new_book
from router.changes import Changes
from router.recent import Recent
from router.settings import RouterSettings

if TYPE_CHECKING:
    from router.assignment_book import Book

_COST_STEPS = 2.0**32
"""Costs are whole multiples of 1 / _COST_STEPS: their sums are exact, so adding and taking away leaves no remainder."""

MARGIN_S = 1e-6
"""Adding up times rounds; known times are looked for so much before and after."""


class _Assigned(msgspec.Struct, gc=False):
    """A request and where it stands. Many are kept: the garbage collector need not see them."""

    worker: Worker
    at: float
    book: Book
    number: int
    note: object


class Assignments:
    """Requests by id and by worker, everything bounded and expiring (see `RouterSettings`).

    Time moves with `advance` and with every report; reading is as of the last of these. A time before an earlier one is
    taken as that one. `changes` names the workers whose numbers an assignment or a report changed; what the passing of
    time changes, `seen` tells beforehand.
    """

    def __init__(self, settings: RouterSettings) -> None:
        self.changes = Changes[Worker]()
        self._settings = settings
        self._requests = Recent[_Assigned]()
        self._books: dict[Worker, Book] = {}
        self._now = -inf
        self._none_due = -inf
        """Up to here no request expires."""
        self._last_finish = -inf
        self._last_first_token = -inf

    def __len__(self) -> int:
        return len(self._requests)

    def advance(self, now: float) -> None:
        """It is `now`."""
        self._now = max(self._now, now)
        if self._now >= self._none_due:
            self._expire()

    def add(
        self,
        request_id: str,
        worker: Worker,
        *,
        weight: float,
        prompt: int,
        reusable: int,
        now: float,
        note: object = None,
    ) -> None:
        """A request was sent to `worker`: `prompt` tokens (0 when not known), of which it reuses `reusable`.

        `note` is kept for `take_note` while the request is known.
        """
        self.advance(now)
        requests = self._requests
        if request_id in requests:
            self._drop_request(request_id)
        cost = max(1 - reusable / prompt if prompt else 1.0, self._settings.warm_request_cost)
        cost = round(cost * _COST_STEPS) / _COST_STEPS
        book = self._books.get(worker) or self._new_book(worker)
        number = book.add(self._now, cost, max(prompt - reusable, 0), 1 / weight)
        requests.add(request_id, _Assigned(worker, self._now, book, number, note))
        self.changes.note(worker)
        while len(requests) > self._settings.request_limit and (oldest := requests.oldest()) is not None:
            self._drop_request(oldest)

    def first_token(self, request_id: str, now: float) -> bool:
        """The request's prefill is done. False: the id is unknown or expired."""
        self.advance(now)
        request = self._requests.get(request_id)
        if request is None:
            return False
        self._last_first_token = self._now
        if request.book.end_prefill(request.number):
            self.changes.note(request.worker)
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

    def take_note(self, request_id: str) -> object:
        """What `add` was given to keep, once; None afterwards, and for an id that is unknown or expired."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        note, request.note = request.note, None
        return note

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

    def book(self, worker: Worker) -> Book | None:
        """The worker's requests, if it has been sent any that are remembered."""
        return self._books.get(worker)

    def prefill_tokens(self, worker: Worker) -> int:
        """Prompt tokens to be computed by requests whose first token is not reported."""
        book = self._books.get(worker)
        return 0 if book is None else book.prefill_tokens(self._now)

    def share(self, worker: Worker) -> tuple[float, float]:
        """The faded count of assignments per weight, and when the last was made (-inf: never). The lesser is due."""
        book = self._books.get(worker)
        return (0.0, -inf) if book is None else (book.faded(self._now), book.last)

    def forget(self, worker: Worker) -> None:
        """Drop the worker's load and share. Its request ids stay reportable until they expire."""
        self._books.pop(worker, None)
        self.changes.note(worker)

    def _new_book(self, worker: Worker) -> Book:
        idle = self._now - max(self._settings.request_ttl_s, 10 * self._settings.spread_half_life_s)
        for known in [known for known, book in self._books.items() if book.last < idle]:
            del self._books[known]
            self.changes.note(known)
        book = self._books[worker] = new_book(self._settings)
        return book

    def _expire(self) -> None:
        ttl_s = self._settings.request_ttl_s
        while (oldest := self._requests.oldest()) is not None:
            request = self._requests.get(oldest)
            if request is not None and self._now - request.at < ttl_s:
                self._none_due = request.at + ttl_s - MARGIN_S
                return
            self._drop_request(oldest)
        self._none_due = self._now + ttl_s - MARGIN_S  # whatever is added later

    def _drop_request(self, request_id: str) -> None:
        request = self._requests.pop(request_id)
        if request is not None:
            self._end(request)

    def _end(self, request: _Assigned) -> None:
        if request.book.end(request.number):
            self.changes.note(request.worker)
