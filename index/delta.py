"""What applying a batch did: counts for the metrics, and whether history is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from index.dump import Operation, Recorded


@dataclass(slots=True)
class Delta:
    """The effect of one batch on one worker.

    `stored`, `removed` count (block, medium, group) holdings that appeared or vanished; `cleared` counts
    AllBlocksCleared; `skipped` counts unusable events by reason; `orphans` counts blocks parked or dropped because
    their parent is not known. Where stored blocks are checked, `matched` counts those whose hash follows from their
    tokens, `mismatched` those with another hash, which are not filed, `unchecked` all the rest.

    `operations` is a list when what was applied is to be recorded; it becomes None when recording cannot tell the whole
    effect (orphans, a worker that changed its pool), so that a snapshot is due.
    """

    stored: int = 0
    removed: int = 0
    cleared: int = 0
    orphans: int = 0
    matched: int = 0
    mismatched: int = 0
    unchecked: int = 0
    lossy: bool = False
    losses: int = 0
    operations: list[Recorded] | None = None
    skipped: dict[str, int] = field(default_factory=dict)

    def record(self, operation: Operation) -> None:
        """Note one applied event, when operations are recorded."""
        if self.operations is not None:
            self.operations.append(operation)

    def lose(self, reason: str) -> None:
        """Count one event that was not used, or not wholly, and whose effect on the cache is not known now."""
        self.skip(reason)
        self.lossy = True
        self.losses += 1

    def skip(self, reason: str) -> None:
        """Count one event that was not used."""
        self.skipped[reason] = self.skipped.get(reason, 0) + 1


class AppliedPayload(NamedTuple):
    """What a payload of plain events did, applied without decoding it in Python.

    Of its `events` the first `done` were applied: `stores` and `removals`. The rest is to be decoded and applied.
    """

    ts: float
    events: int
    done: int
    stores: int
    removals: int
    delta: Delta

    @property
    def is_whole(self) -> bool:
        """Whether all of it was applied, and nothing of it needs telling."""
        return self.done == self.events and not self.delta.skipped and not self.delta.lossy and not self.delta.cleared


class AppliedRun(NamedTuple):
    """What several payloads of plain events did, applied one after the other.

    The first `payloads` of them were applied wholly: `stores` and `removals` in all, the last one made at `ts`, and in
    `recorded` the time and the operations of each, if they are recorded; `matched` and `unchecked` are as in `Delta`.
    `begun` is what the next one did, when it was applied in part or something of it was not used. Payloads behind that,
    or behind one that is not plain, are untouched.
    """

    payloads: int
    ts: float
    stores: int
    removals: int
    begun: AppliedPayload | None
    recorded: Sequence[tuple[float, list[Recorded] | None]]
    matched: int = 0
    unchecked: int = 0

    @classmethod
    def of(cls, whole: list[AppliedPayload], record: bool, begun: AppliedPayload | None = None) -> AppliedRun:
        """Payloads that were applied one by one."""
        recorded = [(one.ts, one.delta.operations) for one in whole] if record else []
        stores, removals = sum(one.stores for one in whole), sum(one.removals for one in whole)
        return cls(len(whole), whole[-1].ts if whole else 0.0, stores, removals, begun, recorded)


NOT_APPLIED = AppliedRun(0, 0.0, 0, 0, None, ())
"""Nothing was."""
