"""Runs of pages whose parent is not known: parked in bounded number, never filed at the root.

As index/orphans.py, for pages: by tier, and a removal of a run costs what the run is long, since page size 1 makes
events of thousands of pages.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from index.worker import Medium

K = TypeVar("K")

MAX_RUNS = 256
MAX_PAGES = 65_536
PAGE_BYTES = 200  # of our own tables per parked page


@dataclass(slots=True, eq=False)
class Run:
    """A stored run of pages (parent None: a root), and those of them that were removed while it was parked."""

    parent: int | None
    hashes: array[int]
    tokens: bytes
    medium: Medium
    gone: set[int] = field(default_factory=set)


@dataclass(slots=True)
class ParkedRuns:
    """The parked runs of one worker. Beyond `MAX_RUNS` or `MAX_PAGES` the oldest are dropped."""

    _runs: dict[Run, None] = field(default_factory=dict)
    _by_parent: dict[int | None, list[Run]] = field(default_factory=dict)
    _by_page: dict[int, list[Run]] = field(default_factory=dict)
    _pages: int = 0

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def size_bytes(self) -> int:
        """Our own memory, estimated."""
        return self._pages * PAGE_BYTES + sum(len(run.tokens) for run in self._runs)

    def park(self, run: Run) -> None:
        """Keep a run until its parent comes."""
        self._runs[run] = None
        self._by_parent.setdefault(run.parent, []).append(run)
        for page in run.hashes:
            self._by_page.setdefault(page, []).append(run)
        self._pages += len(run.hashes)
        while self._runs and (len(self._runs) > MAX_RUNS or self._pages > MAX_PAGES):
            self._take(next(iter(self._runs)))

    def lose(self, page: int, medium: Medium) -> None:
        """Note that a page was removed from a tier, if it is parked there: the oldest copy goes."""
        for run in self._by_page.get(page, ()):
            if run.medium == medium and page not in run.gone:
                run.gone.add(page)
                return

    def adopt(self, pages: Iterable[int]) -> list[Run]:
        """Take out the runs whose parent is one of `pages`, page by page, the oldest first."""
        waiting = [run for page in pages for run in self._by_parent.get(page, ())] if self._runs else []
        for run in waiting:
            self._take(run)
        return waiting

    def _take(self, run: Run) -> None:
        del self._runs[run]
        _drop(self._by_parent, run.parent, run)
        for page in run.hashes:
            _drop(self._by_page, page, run)
        self._pages -= len(run.hashes)


def _drop(table: dict[K, list[Run]], page: K, run: Run) -> None:
    runs = table[page]
    runs.remove(run)
    if not runs:
        del table[page]
