"""Background work gets a slice of each round of the loop, and everybody in turn."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

from app.turns import Turns

LIMIT_S = 20.0


async def test_whoever_uses_up_a_slice_lets_requests_in_and_then_the_others() -> None:
    turns, log, done = Turns(), list[str](), asyncio.Event()

    async def work(name: str) -> None:
        for _ in range(20):
            end = await turns.turn()
            while time.perf_counter() < end:
                pass
            log.append(name)

    async def requests() -> None:
        while not done.is_set():
            log.append("request")
            await asyncio.sleep(0)

    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(requests())
        workers = [tasks.create_task(work(name)) for name in "abc"]
        await asyncio.gather(*workers)
        done.set()
    slices = [number for number, entry in enumerate(log) if entry != "request"]
    assert len(slices) == 60
    assert all("request" in log[one:other] for one, other in pairwise(slices))
    order = [log[number] for number in slices]
    for end in range(60 - 3):  # nobody is served three times while another waits
        assert set(order[end : end + 6]) == set("abc") or end > 50


async def test_small_pieces_of_work_share_a_round() -> None:
    turns, ends = Turns(), list[float]()

    async def work() -> None:
        ends.append(await turns.turn())

    await asyncio.gather(*(work() for _ in range(3)))
    assert len(set(ends)) <= 2  # one slice, unless this machine took a whole one for nothing
    before = time.perf_counter()
    await asyncio.sleep(0)
    assert await turns.turn() > before


async def test_who_gives_up_waiting_holds_nobody_back() -> None:
    turns = Turns()
    end = await turns.turn()
    while time.perf_counter() < end:
        pass
    waiting = [asyncio.create_task(turns.turn()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    waiting[1].cancel()
    async with asyncio.timeout(LIMIT_S):
        assert await waiting[2] > end
