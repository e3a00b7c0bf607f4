from __future__ import annotations

import msgspec
import pytest

from engine.engine_time import EngineClock, engine_time


@pytest.mark.parametrize(
    ("raw", "ts"),
    [
        (msgspec.msgpack.encode([1.5, [], 0]), 1.5),
        (msgspec.msgpack.encode([1.5, []]), 1.5),
        (msgspec.msgpack.encode([1, [], 0]), None),
        (msgspec.msgpack.encode({"ts": 1.5}), None),
        (msgspec.msgpack.encode([float("nan"), [], 0]), None),
        (msgspec.msgpack.encode([1.5]), None),
        (b"", None),
        (b"\x93\xcb\x00", None),
    ],
)
def test_engine_time_is_read_from_the_head_or_not_at_all(raw: bytes, ts: float | None) -> None:
    assert engine_time(raw) == ts


@pytest.mark.parametrize(
    ("before", "after", "jumps"),
    [
        (1.8e9, 1.8e9 - 5, True),
        (1.8e9, 1.8e9 - 0.5, False),
        (1.8e9, 1.8e9 + 5, False),
        (5.0, 1.0, True),
        (1.8e9, 1.0, False),
        (1.0, 1.8e9, False),
        (1.8e9, None, False),
    ],
)
def test_only_like_times_are_compared(before: float, after: float | None, jumps: bool) -> None:
    clock = EngineClock(step_s=1.0)
    assert not clock.jumps_back(before)
    clock.note(0, before)
    assert clock.jumps_back(after) is jumps
