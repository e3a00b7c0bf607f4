from __future__ import annotations

import msgspec
import pytest

from engine.engine_time import engine_time


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
