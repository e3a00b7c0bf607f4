"""Live messages that plainly go on with a stream, taken in many at once by the native core."""

from __future__ import annotations

from typing import NamedTuple

from engine.engine_time import EngineClock
from index.native import CORE


class LiveRun(NamedTuple):
    """Payloads of consecutive numbers, the engine's time of the last one, and their xxh3_64 (8 bytes each, native)."""

    payloads: list[bytes]
    ts: float
    digests: bytes


def leading_run(messages: list[list[bytes]], at: int, topic: bytes, seq: int, clock: EngineClock) -> LiveRun | None:
    """Of the messages from `at` on those numbered from `seq` without a hole, whose times show no other process.

    None when there are none. What is not taken, and all without the native core, is to be looked at one by one: that
    comes to the same.
    """
    if CORE.module is None or clock.newest is None:
        return None
    run = LiveRun(*CORE.module.leading_run(messages, at, topic, seq, clock.newest, clock.step_s))
    return run if run.payloads else None
