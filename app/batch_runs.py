"""Batches that come together, and what is counted of them."""

from __future__ import annotations

from collections.abc import Iterable

from engine.stream import Batch, Signal
from index.delta import AppliedPayload, AppliedRun
from index.event import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent

RUN_BYTES = 32 * 1024
"""Batches that are applied without a look at the time: of new blocks this takes half a millisecond."""


def leading_batches(signals: Iterable[Signal]) -> list[Batch]:
    """The batches in front that may be applied together: all live, or all replayed; RUN_BYTES, or little more."""
    run: list[Batch] = []
    size_bytes = 0
    for signal in signals:
        if not isinstance(signal, Batch) or size_bytes >= RUN_BYTES or (run and signal.replayed != run[0].replayed):
            break
        run.append(signal)
        size_bytes += len(signal.payload)
    return run


def count_applied(applied: AppliedRun | AppliedPayload) -> dict[str, int]:
    """Events that the native core applied, by type."""
    named = (("stored", applied.stores), ("removed", applied.removals))
    return {name: count for name, count in named if count}


def count_types(events: list[KVEvent]) -> dict[str, int]:
    """Decoded events by type."""
    counts: dict[str, int] = {}
    for event in events:
        match event:
            case BlockStored():
                name = "stored"
            case BlockRemoved():
                name = "removed"
            case AllBlocksCleared():
                name = "cleared"
            case _:
                name = "skipped"
        counts[name] = counts.get(name, 0) + 1
    return counts
