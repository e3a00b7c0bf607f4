"""Durations counted into buckets, for the histograms of `/metrics`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

BUCKETS_S: Final = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
)
"""Upper bounds, those of vLLM's time to first token up to 40 s; the last bucket has none."""


class Latencies:
    """One histogram."""

    def __init__(self) -> None:
        self.sum_s = 0.0
        self._counts = [0] * (len(BUCKETS_S) + 1)

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.sum_s += seconds
        self._counts[bisect_left(BUCKETS_S, seconds)] += 1

    def cumulative(self) -> Sequence[tuple[str, float]]:
        """Upper bounds as Prometheus writes them, and how many were not above."""
        bounds = [*(str(bound) for bound in BUCKETS_S), "+Inf"]
        total, rows = 0, list[tuple[str, float]]()
        for bound, count in zip(bounds, self._counts, strict=True):
            total += count
            rows.append((bound, float(total)))
        return rows
