"""The availability benchmark's engines: CPU engines behind proxies, what can go wrong with one, and how it heals."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from random import Random
from typing import IO, Any, Final

from benchmarks.availability_proxy import HOST, EngineProxy, Mode
from tests.support.ports import free_ports

MODEL: Final = "tiny"
OTHER_MODEL: Final = "other"
ROOT: Final = Path(__file__).parents[1]
NOTICES_S: Final = 0.4
"""When SGLang's API server notices that its scheduler is gone: it then answers nothing for seconds, and ends."""
START_S: Final = 60.0
STOP_S: Final = 10.0
POLL_S: Final = 0.02
BROKEN_S: Final = (4.0, 6.0)
OPTIONS: Final = {
    "vllm": ("--hash-algorithm", "sha256_cbor"),
    "sglang": ("--dynamo", "--decode-log-interval", "1"),
}
COMMON: Final = ("--block-size", "16", "--cache-tokens", "400000", "--prefill-us", "50", "--decode-us", "5000")
"""Room for all that a run computes: an eviction may break a promise that was right when it was given."""


class Kind(Enum):
    """What goes wrong."""

    KILL = "kill"
    RESTART = "restart"
    HANG_HTTP = "hang HTTP"
    HANG_ALL = "hang all"
    CORE_DEAD = "core dead"
    SWAP_MODEL = "swap model"
    UNAUTHORIZED = "401"


MEANINGS: Final = {
    Kind.KILL: "kill -9, started again some seconds later",
    Kind.RESTART: "SIGTERM and started again at once",
    Kind.HANG_HTTP: "the HTTP side takes connections and answers nothing; the event socket lives",
    Kind.HANG_ALL: "SIGSTOP, some seconds later SIGCONT",
    Kind.CORE_DEAD: "event sockets gone; vLLM: /health 503, requests 500; SGLang: soon no answer; later restarted",
    Kind.SWAP_MODEL: "replaced by a process that serves another model, some seconds later replaced back",
    Kind.UNAUTHORIZED: "401 to everything",
}


class EngineLost(Exception):
    """An engine that does not start, in words."""


@dataclass(eq=False)
class FaultyEngine:
    """One engine: its process, its ports, and the proxy that the router and the gateway see instead of it."""

    name: str
    face: str
    log: IO[bytes]
    proxy: EngineProxy = field(init=False)
    _events: int = field(default_factory=free_ports)
    _replay: int = field(default_factory=free_ports)
    _process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.proxy = EngineProxy(free_ports(), free_ports())

    @property
    def url(self) -> str:
        """Where it is for all others: its proxy."""
        return f"http://{HOST}:{self.proxy.port}"

    def settings(self) -> dict[str, Any]:
        """What the router is told. Its ports for events are the engine's own."""
        return {"id": self.name, "engine": self.face, "model": MODEL, "url": self.url}

    async def start(self, model: str = MODEL) -> None:
        """Start it; when it answers, the proxy takes connections. EngineLost when it does not."""
        self._spawn(model)
        end = time.monotonic() + START_S
        while not await self._listens():
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > end:
                raise EngineLost(f"{self.name} did not start: status {self._process.poll()}")
            await asyncio.sleep(POLL_S)
        await self.proxy.listen()

    async def stop(self, how: signal.Signals) -> None:
        """Send a signal and wait for the end; nobody listens any more."""
        process = self._process
        assert process is not None
        process.send_signal(how)
        if how is signal.SIGKILL:
            self.proxy.refuse()
        end = time.monotonic() + STOP_S
        while process.poll() is None and time.monotonic() < end:
            if not await self._listens():
                self.proxy.stop_listening()  # it still answers what it has begun
            await asyncio.sleep(POLL_S)
        self.close()
        self.proxy.refuse()

    def signal(self, what: signal.Signals) -> None:
        """Send a signal that does not end it."""
        assert self._process is not None
        self._process.send_signal(what)

    def close(self) -> None:
        """Kill it if it runs, stopped or not."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(STOP_S)

    def kinds(self) -> list[str]:
        """What can go wrong with it: everything."""
        return [kind.value for kind in Kind]

    def broken_for(self, kind: str, random: Random) -> float:
        """How long a fault lasts, in seconds; starting and ending processes may take longer."""
        return 0.0 if Kind(kind) is Kind.RESTART else random.uniform(*BROKEN_S)

    async def break_it(self, kind: str) -> None:
        """Begin the fault. Returns at once but for the processes that have to end."""
        match Kind(kind):
            case Kind.KILL:
                await self.stop(signal.SIGKILL)
            case Kind.RESTART:
                await self.stop(signal.SIGTERM)
            case Kind.HANG_HTTP:
                self.proxy.set_mode(Mode.HANG)
            case Kind.HANG_ALL:
                self.signal(signal.SIGSTOP)
            case Kind.CORE_DEAD:
                self.signal(signal.SIGUSR1)
                if self.face == "sglang":
                    await asyncio.sleep(NOTICES_S)
                    self.proxy.set_mode(Mode.HANG)
            case Kind.SWAP_MODEL:
                await self.stop(signal.SIGKILL)
                await self.start(OTHER_MODEL)
            case Kind.UNAUTHORIZED:
                self.proxy.set_mode(Mode.UNAUTHORIZED)

    async def heal(self, kind: str) -> None:
        """End the fault: afterwards it answers and serves the model. EngineLost when it does not."""
        match Kind(kind):
            case Kind.KILL | Kind.RESTART:
                await self.start()
            case Kind.HANG_HTTP | Kind.UNAUTHORIZED:
                self.proxy.set_mode(Mode.PASS)
            case Kind.HANG_ALL:
                self.signal(signal.SIGCONT)
            case Kind.CORE_DEAD | Kind.SWAP_MODEL:
                await self.stop(signal.SIGKILL)
                self.proxy.set_mode(Mode.PASS)
                await self.start()

    def _spawn(self, model: str) -> None:
        ports = ["--port", str(self.proxy.engine_port)]
        ports += ["--events-port", str(self._events), "--replay-port", str(self._replay)]
        options = [*COMMON, *OPTIONS[self.face], "--model", model, *ports]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "deploy.engine", "--face", self.face, *options],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": "0"},
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,  # Ctrl-C reaches the benchmark alone, which then ends the others
        )

    async def _listens(self) -> bool:
        try:
            _, writer = await asyncio.open_connection(HOST, self.proxy.engine_port)
        except OSError:
            return False
        writer.close()
        return True
