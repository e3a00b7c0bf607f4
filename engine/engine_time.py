"""The engine's clock, as its batches show it: it names no process, but when it jumps back there is a new one."""

from __future__ import annotations

import math
import struct

_FLOAT64 = struct.Struct(">d")
_PLACEHOLDER_BELOW_S = 1e9
"""Engines send seconds since 1970. Times before 2001 were made up, and say nothing beside real ones."""


def engine_time(payload: bytes) -> float | None:
    """The engine's clock in seconds at the head of a batch `[ts, events, ...]`; None in any other form."""
    if len(payload) < 10 or payload[0] & 0xF0 != 0x90 or payload[0] < 0x92 or payload[1] != 0xCB:
        return None
    ts: float = _FLOAT64.unpack_from(payload, 2)[0]
    return ts if math.isfinite(ts) else None


class EngineClock:
    """The time of the batch with the highest number; small steps back are a clock being set, not a new process."""

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s
        self._newest: tuple[int, float] | None = None

    @property
    def newest(self) -> float | None:
        """The time of that batch; None before any."""
        return None if self._newest is None else self._newest[1]

    def jumps_back(self, ts: float | None) -> bool:
        """Whether a batch with a higher number than any before cannot be of the same process."""
        if (
            ts is None
            or self._newest is None
            or (ts < _PLACEHOLDER_BELOW_S) != (self._newest[1] < _PLACEHOLDER_BELOW_S)
        ):
            return False
        return ts < self._newest[1] - self.step_s

    def note(self, seq: int, ts: float | None) -> None:
        """A batch of this process."""
        if ts is not None and (self._newest is None or seq >= self._newest[0]):
            self._newest = (seq, ts)
