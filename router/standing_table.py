"""The numbers by which standing candidates are compared: one row each, by place from 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp2, inf
from typing import TYPE_CHECKING, NamedTuple

from index.native import CORE
from router.backlog import Queue, outweighed
from router.load_guard import Sight, Told, average_report, guard_limit, look, rank_of

if TYPE_CHECKING:
    from types import ModuleType

    from index import _core
    from router.assignment_book import Book
    from router.settings import RouterSettings

NOT_TOLD = Told(None, None, 1.0)
NOT_SEEN = Sight(None, None, 0.0, 0.0, -inf)


class Row(NamedTuple):
    """One candidate. Times are in seconds.

    `rank` is its load for comparing, `known` what of it rests on facts, `backlog` its queue of prompts, in tokens per
    weight. `share` are its assignments per weight as of the last one, `last` when that was (-inf: never), `one` what
    one more would add. All this stays as it is up to `until`.
    """

    rank: float
    known: float
    backlog: float
    share: float
    last: float
    one: float
    until: float


class StandingTable:
    """Rows of all places, in the order of the candidates. Nobody has looked at any of them at first."""

    def __init__(self, count: int, settings: RouterSettings) -> None:
        self._settings = settings
        self._told = [NOT_TOLD] * count
        self._sights = [NOT_SEEN] * count
        self._rows = [Row(0.0, 0.0, 0.0, 0.0, -inf, 0.0, -inf)] * count
        self._unreported = count
        self._limit = inf
        """The known load above which a candidate is held back."""
        self._weighed = False
        self._outweighed: frozenset[int] = frozenset()

    def tell(self, place: int, told: Told) -> None:
        """What the engine of a place told last, for `look`."""
        self._told[place] = told

    def look(self, books: Mapping[int, Book | None], now: float, ends_reported: bool) -> float:
        """Write the rows of some places anew, from what was told and from their assigned requests.

        All ranks and the limit follow from it. Returns the first time at which a row may be another.
        """
        unreported = self._unreported
        for place, book in books.items():
            self._look(place, book, now, ends_reported)
        if unreported != self._unreported or 0 < self._unreported < len(self._rows):
            self._rank_anew()
        self._limit = guard_limit(min([row.rank for row in self._rows]), self._settings)
        return min([row.until for row in self._rows])

    def ranks(self) -> list[float]:
        """All ranks, by place."""
        return [row.rank for row in self._rows]

    def over(self, now: float) -> list[int]:
        """The places whose rows may be others by `now`."""
        return [place for place, row in enumerate(self._rows) if row.until <= now]

    def weigh(self, saved: Mapping[int, int], prompt_tokens: int, weight: float) -> None:
        """Weigh queues against prefixes (router/backlog.py) of those not held back, until `unweigh`.

        `saved`: by place, the tokens that a candidate will not compute, zero where it is left out.
        """
        self.unweigh()
        free = [place for place in range(len(self._rows)) if not self.held(place)]
        queues = [Queue(self._rows[place].backlog, saved.get(place, 0)) for place in free]
        loses = outweighed(queues, prompt_tokens, weight)
        self._weighed = True
        self._outweighed = frozenset(place for place, lost in zip(free, loses, strict=True) if lost)

    def unweigh(self) -> None:
        """Queues do not count."""
        self._weighed, self._outweighed = False, frozenset()

    def held(self, place: int) -> bool:
        """Whether the candidate is held back, or its queue outweighs its prefix."""
        return self._rows[place].known > self._limit or place in self._outweighed

    def due(self, places: Sequence[int] | None, now: float, half_life_s: float) -> list[int]:
        """Of some places, those with the least queue, where queues are weighed; of these, those of the least rank.

        Of these, those with the fewest assignments as faded by `now`, with one more; then longest without one. None: of
        all, where queues are weighed of those not held back.
        """
        rows = self._rows
        some = range(len(rows)) if places is None else places
        if self._weighed:
            some = [place for place in some if not self.held(place)] if places is None else some
            shortest = min([rows[place].backlog for place in some])
            some = [place for place in some if rows[place].backlog == shortest]
        least = min([rows[place].rank for place in some])
        tied = [place for place in some if rows[place].rank == least]
        if len(tied) == 1:
            return tied
        turns = [
            ((share * exp2((last - now) / half_life_s) if share else 0.0) + one, last)
            for _, _, _, share, last, one, _ in map(rows.__getitem__, tied)
        ]
        first = min(turns)
        return [place for place, turn in zip(tied, turns, strict=True) if turn == first]

    def _look(self, place: int, book: Book | None, now: float, ends_reported: bool) -> None:
        told = self._told[place]
        sight = look(told, book, self._settings, now, ends_reported=ends_reported)
        self._unreported += (sight.report is None) - (self._sights[place].report is None)
        self._sights[place] = sight
        share, last = (0.0, -inf) if book is None else (book.share, book.last)
        rank = rank_of(sight, None)
        self._rows[place] = Row(rank, sight.known, sight.backlog, share, last, 1 / told.weight, sight.until)

    def _rank_anew(self) -> None:
        """Where only some engines report, the others count by the average of those."""
        average = average_report(self._sights)
        for place, sight in enumerate(self._sights):
            self._rows[place] = self._rows[place]._replace(rank=rank_of(sight, average))


def standing_table(
    count: int, settings: RouterSettings, module: ModuleType | None = CORE.module
) -> StandingTable | _core.StandingTable:
    """A table of zeros, in the core that serves unless another is given."""
    if module is None:
        return StandingTable(count, settings)
    times = settings.load_window_s, settings.load_stale_s, settings.assignment_ttl_s, settings.prefill_ttl_s
    guard = settings.guard_floor_requests, settings.guard_multiple
    table: _core.StandingTable = module.StandingTable(count, *times, *guard)
    return table
