"""What applying a batch did: counts for the metrics, and whether history is missing."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Delta:
    """The effect of one batch on one worker.

    `stored`, `removed` count (block, medium, group) holdings that appeared or vanished; `cleared` counts
    AllBlocksCleared; `skipped` counts unusable events by reason; `orphans` counts blocks parked or dropped because
    their parent is not known (a reason to ask for a replay).
    """

    stored: int = 0
    removed: int = 0
    cleared: int = 0
    orphans: int = 0
    lossy: bool = False
    skipped: dict[str, int] = field(default_factory=dict)

    def skip(self, reason: str) -> None:
        """Count one event that was not used."""
        self.skipped[reason] = self.skipped.get(reason, 0) + 1
