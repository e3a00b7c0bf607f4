"""One process of the stack: kept running, looked after, and gone at the end with all that it started."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.stack import supervised
from deploy.stack.compose_file import HealthCheck
from deploy.stack.failure import StackFailed
from deploy.stack.program import Program
from deploy.stack.supervised import Supervised

LIMIT_S = 20.0


def program(folder: Path, script: str, health: str = "true") -> Program:
    check = HealthCheck(("sh", "-c", health), interval_s=0.05, timeout_s=2.0, retries=2)
    return Program("one", ("sh", "-c", script), {"FOLDER": str(folder)}, ("127.0.0.1:1",), check, folder / "log")


@asynccontextmanager
async def running(one: Supervised) -> AsyncIterator[None]:
    task = asyncio.create_task(one.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not holds():  # noqa: ASYNC110 - processes set no event
            await asyncio.sleep(0.01)


def cancel_all_others() -> None:
    """As asyncio.run does when it is left early: every task, those that are ending already too."""
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def test_a_killed_process_is_started_again(tmp_path: Path) -> None:
    one = Supervised(program(tmp_path, "exec sleep 60"))
    async with running(one):
        await until(lambda: one.health == "healthy")
        first = one.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await until(lambda: one.starts == 2 and one.pid not in (None, first) and one.health == "healthy")
        second = one.pid
    assert second is not None
    assert not lives(second)
    assert one.pid is None


async def test_what_a_process_leaves_behind_is_ended_before_it_is_started_again(tmp_path: Path) -> None:
    one = Supervised(program(tmp_path, 'sleep 60 & echo $! >> "$FOLDER/children"; wait'))
    children = tmp_path / "children"
    async with running(one):
        await until(lambda: children.exists() and children.read_text().count("\n") == 1 and one.pid is not None)
        assert one.pid is not None
        os.kill(one.pid, signal.SIGKILL)
        await until(lambda: children.read_text().count("\n") == 2)
        former, current = map(int, children.read_text().split())
        await until(lambda: not lives(former))
        assert lives(current)
    await until(lambda: not lives(current))


async def test_what_a_process_has_started_is_ended_whenever_it_is_cancelled(tmp_path: Path) -> None:
    """Also in the first steps of the loop, in which asyncio would only kill the process itself."""
    for steps in range(6):
        folder = tmp_path / str(steps)
        folder.mkdir()
        one = Supervised(program(folder, 'sleep 60 & echo $! > "$FOLDER/new"; mv "$FOLDER/new" "$FOLDER/child"; wait'))
        task = asyncio.create_task(one.run())
        while not one.starts:  # noqa: ASYNC110 - one step of the loop at a time
            await asyncio.sleep(0)
        began = time.monotonic()
        while not (folder / "child").exists() and time.monotonic() < began + 5.0:
            time.sleep(0.01)  # noqa: ASYNC251 - the process goes on, the loop that starts it does not
        for _ in range(steps):
            await asyncio.sleep(0)
        cancel_all_others()
        await asyncio.gather(task, return_exceptions=True)
        child = int((folder / "child").read_text())
        await until(lambda pid=child: not lives(pid))  # type: ignore[misc]


@pytest.mark.parametrize("patience_s", [0.0, 0.1])
async def test_cancelled_again_while_it_ends_its_process_it_still_ends_that(tmp_path: Path, patience_s: float) -> None:
    """In the same order: it is asked, and what it has started is killed."""
    ending = 'sleep 0.5; touch "$FOLDER/asked"; exit'
    born = 'echo $! > "$FOLDER/new"; mv "$FOLDER/new" "$FOLDER/child"'
    one = Supervised(program(tmp_path, f"trap '{ending}' TERM; sleep 60 & {born}; wait"))
    task = asyncio.create_task(one.run())
    await until(lambda: (tmp_path / "child").exists() and one.pid is not None)
    pid, child = one.pid, int((tmp_path / "child").read_text())
    assert pid is not None
    for _ in range(3):
        cancel_all_others()
        await asyncio.sleep(patience_s)
    assert lives(pid)
    await asyncio.gather(task, return_exceptions=True)
    assert (tmp_path / "asked").exists()
    await until(lambda: not lives(pid) and not lives(child))


async def test_what_a_health_check_has_started_is_ended_with_it(tmp_path: Path) -> None:
    health = 'sleep 60 & echo $! > "$FOLDER/new"; mv "$FOLDER/new" "$FOLDER/child"; wait'
    one = Supervised(program(tmp_path, "exec sleep 60", health))
    async with running(one):
        await until((tmp_path / "child").exists)
        child = int((tmp_path / "child").read_text())
    await until(lambda: not lives(child))


async def test_a_missing_program_is_told(tmp_path: Path) -> None:
    one = Supervised(replace(program(tmp_path, ""), command=("/no/such/program",)))
    with pytest.raises(ExceptionGroup) as caught:
        await one.run()
    assert isinstance(caught.value.exceptions[0], FileNotFoundError)


async def test_a_process_that_does_not_end_by_itself_is_killed(tmp_path: Path) -> None:
    one = Supervised(program(tmp_path, 'trap "" TERM; echo up; while :; do sleep 0.1; done'))
    async with running(one):
        await until(lambda: "up" in one.last_words() and one.pid is not None)
        pid = one.pid
        assert pid is not None
    assert not lives(pid)


async def test_a_process_that_ends_at_once_is_started_ever_more_rarely(tmp_path: Path) -> None:
    one = Supervised(program(tmp_path, "echo its reason; exit 3", health="false"))
    async with running(one):
        await until(lambda: one.starts >= 3)
        await asyncio.sleep(4 * supervised.FIRST_WAIT_S)
        assert one.starts <= 5
        assert one.health == "starting"
    assert one.last_words().splitlines()[-1] == "its reason"


async def test_a_process_that_was_never_well_and_refuses_its_settings_is_not_started_again(tmp_path: Path) -> None:
    one = Supervised(program(tmp_path, "echo its reason; exit 2", health="false"))
    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.timeout(LIMIT_S):
            await one.run()
    (failure,) = caught.value.exceptions
    assert isinstance(failure, StackFailed)
    assert str(failure) == "one refuses its settings:\nits reason"
    assert one.starts == 1


async def test_health_follows_the_check_after_as_many_failures_as_are_allowed(tmp_path: Path) -> None:
    one = Supervised(program(tmp_path, "exec sleep 60", health='test -e "$FOLDER/well"'))
    async with running(one):
        await until(lambda: one.pid is not None)
        assert one.health == "starting"
        (tmp_path / "well").touch()
        await until(lambda: one.health == "healthy")
        (tmp_path / "well").unlink()
        await until(lambda: one.health == "unhealthy")
        (tmp_path / "well").touch()
        await until(lambda: one.health == "healthy")
        assert one.starts == 1
