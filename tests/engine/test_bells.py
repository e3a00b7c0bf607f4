"""Files watched together: told when they can be read, at once after silence and again while they are not read."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from engine.bells import Bells

LIMIT_S = 10.0


@pytest.fixture
def pipes() -> Iterator[list[tuple[int, int]]]:
    made = [os.pipe() for _ in range(3)]
    yield made
    for ends in made:
        for end in ends:
            os.close(end)


class Rung:
    """Which bells rang, in order; `until` waits for so many."""

    def __init__(self) -> None:
        self.names: list[int] = []
        self._more = asyncio.Event()

    def ring(self, name: int) -> None:
        self.names.append(name)
        self._more.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(LIMIT_S):
            while len(self.names) < count:
                self._more.clear()
                await self._more.wait()


async def test_each_file_rings_its_own_bell_until_it_is_read(pipes: list[tuple[int, int]]) -> None:
    bells, rung = Bells(), Rung()
    for name, (reads, _) in enumerate(pipes):
        bells.watch(reads, lambda name=name: rung.ring(name))  # type: ignore[misc]
    for name in (1, 2):
        os.write(pipes[name][1], b"x")
        await rung.until(len(rung.names) + 3)
        assert set(rung.names) == {name}
        os.read(pipes[name][0], 1)
        await asyncio.sleep(0.05)  # what was rung before it was read
        rung.names.clear()
        await asyncio.sleep(0.05)
        assert rung.names == []
    for reads, _ in pipes:
        bells.forget(reads)


async def test_who_is_forgotten_rings_no_more_and_the_others_do(pipes: list[tuple[int, int]]) -> None:
    bells, rung = Bells(), Rung()
    for name, (reads, writes) in enumerate(pipes):
        bells.watch(reads, lambda name=name: rung.ring(name))  # type: ignore[misc]
        os.write(writes, b"x")
    await rung.until(6)
    bells.forget(pipes[0][0])
    rung.names.clear()
    await rung.until(4)
    assert set(rung.names) == {1, 2}
    bells.forget(pipes[1][0])
    bells.forget(pipes[2][0])
    rung.names.clear()
    await asyncio.sleep(0.05)
    assert rung.names == []


async def test_after_the_last_is_forgotten_it_holds_no_file_and_may_begin_again(pipes: list[tuple[int, int]]) -> None:
    bells, rung = Bells(), Rung()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        bells.watch(pipes[0][0], lambda: rung.ring(0))
        os.write(pipes[0][1], b"x")
        await rung.until(1)
        os.read(pipes[0][0], 1)
        bells.forget(pipes[0][0])
        rung.names.clear()
    assert len(os.listdir("/proc/self/fd")) == before
