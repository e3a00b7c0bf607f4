"""A worker's assigned requests as the load guard sees them."""

from __future__ import annotations

from index.worker import Worker
from router.assignment_book import NOTHING, Seen
from router.assignments import Assignments


def seen(assignments: Assignments, worker: Worker, since: float) -> Seen:
    """What counts as the worker's load; its requests at or after `since` are new."""
    book = assignments.book(worker)
    return NOTHING if book is None else Seen(*book.seen(assignments.now, since))
