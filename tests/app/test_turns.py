"""Background work gets a slice of each round of the loop, and everybody in turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise

import pytest

from app.turns import Turns

LIMIT_S = 20.0


def used_up(log: list[str], name: str, times: int) -> Callable[[float], bool]:
    """Work that uses up its turn, and wants so many of them."""
    left = [times]

    def work(end: float) -> bool:
        while time.perf_counter() < end:
            pass
        log.append(name)
        left[0] -= 1
        return left[0] > 0

    return work


async def rounds(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_whoever_uses_up_a_slice_lets_requests_in_and_then_the_others() -> None:
    turns, log = Turns(), list[str]()
    with ExitStack() as stack:
        for name in "abc":
            stack.enter_context(turns.of(used_up(log, name, 20))).ask()
        async with asyncio.timeout(LIMIT_S):
            while len([entry for entry in log if entry != "request"]) < 60:
                log.append("request")
                await asyncio.sleep(0)
    slices = [number for number, entry in enumerate(log) if entry != "request"]
    assert all("request" in log[one:other] for one, other in pairwise(slices))
    assert "".join(log[number] for number in slices) == "abc" * 20


async def test_small_pieces_of_work_share_a_round() -> None:
    turns, ends = Turns(), list[float]()

    def work(end: float) -> bool:
        ends.append(end)
        return False

    with turns.of(work) as one, turns.of(work) as other:
        for turn in (one, other, one):
            turn.ask()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(ends) == 2  # who asks twice has asked once
        assert ends[0] <= ends[1]  # one slice, unless this machine took a whole one for nothing
        one.ask()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert ends[2] > ends[1]


async def test_who_gives_up_has_no_turn_and_holds_nobody_back() -> None:
    turns, log = Turns(), list[str]()
    with turns.of(used_up(log, "stays", 2)) as stays:
        with turns.of(used_up(log, "goes", 2)) as goes:
            goes.ask()
            stays.ask()
        goes.ask()
        await rounds(5)
    assert log == ["stays", "stays"]


async def test_a_failure_is_told_to_its_owner_and_the_others_go_on() -> None:
    turns, log = Turns(), list[str]()

    def fails(end: float) -> bool:
        raise ValueError(end)

    with turns.of(fails) as one, turns.of(used_up(log, "other", 1)) as other:
        one.ask()
        other.ask()
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(ValueError, match=r"\d"):
                await one.ended
            await rounds(5)
        one.ask()  # nothing comes of it
        await asyncio.sleep(0)
    assert log == ["other"]
