"""Own assignments: what this router sent where, until it is reported as finished or has expired."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import TYPE_CHECKING

from index.worker import Worker
from router.assignment_book import new_book
from router.changes import Changes
from router.request_log import request_log
from router.settings import RouterSettings

if TYPE_CHECKING:
    from router.assignment_book import Book

MARGIN_S = 1e-6
"""Adding up times rounds; known times are looked for so much before and after."""


class Assignments:
    """Requests by id and by worker, everything bounded and expiring (see `RouterSettings`).

    Time moves with `advance` and with every report; reading is as of the last of these. A time before an earlier one is
    taken as that one. `changes` names the workers whose numbers an assignment or a report changed; what the passing of
    time changes, `seen` tells beforehand.
    """

    def __init__(self, settings: RouterSettings) -> None:
        self.changes = Changes[Worker]()
        self._settings = settings
        self._requests = request_log(settings)
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
        if now > self._now:
            self._now = now
            if now >= self._none_due:
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
        book = self._books.get(worker) or self._new_book(worker)
        gave_way = self._requests.add(request_id, worker, book, self._now, weight, prompt, reusable, note)  # type: ignore[arg-type]
        self.changes.note(worker)
        self._note(gave_way)

    def first_token(self, request_id: str, now: float) -> bool:
        """The request's prefill is done. False: the id is unknown or expired."""
        self.advance(now)
        changed = self._requests.end_prefill(request_id)
        if changed is None:
            return False
        self._last_first_token = self._now
        self._note(changed)
        return True

    def finished(self, request_id: str, now: float) -> bool:
        """The request is over; saying so twice does no harm. False: the id is unknown or expired."""
        self.advance(now)
        changed = self._requests.end(request_id)
        if changed is None:
            return False
        self._last_finish = self._now
        self._note(changed)
        return True

    def take_note(self, request_id: str) -> object:
        """What `add` was given to keep, once; None afterwards, and for an id that is unknown or expired."""
        return self._requests.take_note(request_id)

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
        self._note(self._requests.expire(self._now))
        oldest_at = min(self._requests.oldest_at, self._now)  # whatever is added later
        self._none_due = oldest_at + self._settings.request_ttl_s - MARGIN_S

    def _note(self, changed: Iterable[Worker]) -> None:
        for worker in changed:
            self.changes.note(worker)
