"""Bounds of the write-behind to the state store."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WriterLimits:
    """What may wait (batches, bytes), how long a log grows before a snapshot replaces it, and when state expires."""

    queue_batches: int = 100_000
    queue_bytes: int = 256 * 1024 * 1024
    snapshot_batches: int = 2_000
    ttl_s: float = 86_400.0
