"""One service of the stack: its process, started again whenever it ends, and its health."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import IO, Literal

from deploy.stack.failure import StackFailed
from deploy.stack.program import Program, surroundings

ROOT = Path(__file__).parents[2]
STOP_S = 5.0
"""How long a process may take to end by itself."""
FIRST_WAIT_S, LONGEST_WAIT_S, STEADY_S = 0.1, 10.0, 10.0
"""Before a process is started again: doubled each time, and the first again after so many seconds of running."""
EAGER_S = 0.5
"""Between two health checks of a service that has not been healthy since its start."""
WRONG_SETTINGS = 2
"""The exit status of routers and engines whose settings cannot work: starting them again would not help."""
LOG_BYTES = 16 << 20
"""A longer log begins anew."""
LOOK_S = 0.02
"""Between two looks whether a process has ended."""

Health = Literal["starting", "healthy", "unhealthy"]


class Supervised:
    """A program kept running: `run` until cancelled, then nothing of it runs, however often it is cancelled.

    Processes are started within one step of the loop: there is no moment in which one runs that nobody knows of yet.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.health: Health = "starting"
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """The running process's; None between two."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    async def run(self) -> None:
        """Start it, start it again when it has ended, look after its health; end it when cancelled.

        StackFailed, with its last words, when it has never been well and ends because its settings are wrong.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_running())
            tasks.create_task(self._keep_checking())

    def last_words(self, lines: int = 12) -> str:
        """The end of its log."""
        text = self.program.log.read_text(errors="replace") if self.program.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    async def _keep_running(self) -> None:
        wait_s = FIRST_WAIT_S
        while True:
            began = time.monotonic()
            process = self._process = self._start()
            try:
                await _ended(process)
            finally:
                await _end(process)
            if self.health == "starting" and process.returncode == WRONG_SETTINGS:
                raise StackFailed(f"{self.program.name} refuses its settings:\n{self.last_words()}")
            if self.health != "starting":
                self.health = "unhealthy"
            self._ended.set()
            wait_s = FIRST_WAIT_S if time.monotonic() - began >= STEADY_S else wait_s
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    def _start(self) -> subprocess.Popen[bytes]:
        self.starts += 1
        with self.program.log.open("ab") as log:
            return self._started(self.program.command, log)

    def _started(self, command: tuple[str, ...], output: IO[bytes] | int) -> subprocess.Popen[bytes]:
        """In a session of its own: Ctrl-C reaches the stack alone, and what it leaves behind can be ended with it."""
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=surroundings() | self.program.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

    async def _keep_checking(self) -> None:
        failures = 0
        while True:
            is_well = await self._is_well()
            failures = 0 if is_well else failures + 1
            if is_well:
                self.health = "healthy"
            elif self.health == "healthy" and failures >= self.program.health.retries:
                self.health = "unhealthy"
            self._bound_log()
            await self._pause(self.program.health.interval_s if self.health == "healthy" else EAGER_S)

    async def _pause(self, pause_s: float) -> None:
        """Until the next check; a process that ended is looked after at once."""
        try:
            async with asyncio.timeout(pause_s):
                await self._ended.wait()
        except TimeoutError:
            pass
        self._ended.clear()

    async def _is_well(self) -> bool:
        if self.pid is None:
            return False
        check = self._started(self.program.health.command, subprocess.DEVNULL)
        try:
            async with asyncio.timeout(self.program.health.timeout_s):
                return await _ended(check) == 0
        except TimeoutError:
            return False
        finally:
            await _kill(check)

    def _bound_log(self) -> None:
        if self.program.log.exists() and self.program.log.stat().st_size > LOG_BYTES:
            os.truncate(self.program.log, 0)


async def _ended(process: subprocess.Popen[bytes]) -> int:
    """Its exit status, once it has one."""
    while (status := process.poll()) is None:  # noqa: ASYNC110 - a process sets no event
        await asyncio.sleep(LOOK_S)
    return status


async def _end(process: subprocess.Popen[bytes]) -> None:
    """As when a container stops: first asked, then all of its processes are killed."""
    process.terminate()
    await _let_end(process)
    await _kill(process)


async def _kill(process: subprocess.Popen[bytes]) -> None:
    """It and all that it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    await _let_end(process)


async def _let_end(process: subprocess.Popen[bytes]) -> None:
    """Wait until it has ended, `STOP_S` at most: to be cancelled meanwhile changes nothing, its owner is ending."""
    until = time.monotonic() + STOP_S
    while process.poll() is None and time.monotonic() < until:
        try:
            await asyncio.sleep(LOOK_S)
        except asyncio.CancelledError:
            continue
