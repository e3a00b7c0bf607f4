"""The numbers by which standing candidates are compared: one row each, by place from 0."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp2, inf
from typing import TYPE_CHECKING

from index.native import CORE

if TYPE_CHECKING:
    from types import ModuleType

    from index import _core


Row = tuple[float, float, float, float, float]
"""rank, share, last, one, until.

The load for comparing; the assignments per weight as of the last one, when that was (-inf: never), and what one more
would add; until when all this stays as it is. Times in seconds.
"""


class StandingTable:
    """Rows of all places."""

    def __init__(self, count: int) -> None:
        self._ranks = [0.0] * count
        self._turns = [(0.0, -inf, 0.0)] * count
        self._until = [0.0] * count

    def put(self, place: int, row: Row) -> None:
        """Write a row."""
        self._ranks[place], *_, self._until[place] = row
        self._turns[place] = row[1:4]

    def rank(self, place: int, rank: float) -> None:
        """Write a row's rank alone."""
        self._ranks[place] = rank

    def ranks(self) -> list[float]:
        """All ranks, by place."""
        return self._ranks.copy()

    def least_rank(self) -> float:
        """The smallest rank."""
        return min(self._ranks)

    def least_until(self) -> float:
        """The first time at which a row may be another."""
        return min(self._until)

    def over(self, now: float) -> list[int]:
        """The places whose rows may be others by `now`."""
        return [place for place, until in enumerate(self._until) if until <= now]

    def due(self, places: Sequence[int] | None, now: float, half_life_s: float) -> list[int]:
        """Of some places (None: of all) those of the least rank.

        Of these, those with the fewest assignments as faded by `now`, with one more; then longest without one.
        """
        some = range(len(self._ranks)) if places is None else places
        least = min([self._ranks[place] for place in some])
        tied = [place for place in some if self._ranks[place] == least]
        if len(tied) == 1:
            return tied
        turns = [
            ((share * exp2((last - now) / half_life_s) if share else 0.0) + one, last)
            for share, last, one in map(self._turns.__getitem__, tied)
        ]
        first = min(turns)
        return [place for place, turn in zip(tied, turns, strict=True) if turn == first]


def standing_table(count: int, module: ModuleType | None = CORE.module) -> StandingTable | _core.StandingTable:
    """A table of zeros, in the core that serves unless another is given."""
    if module is None:
        return StandingTable(count)
    table: _core.StandingTable = module.StandingTable(count)
    return table
