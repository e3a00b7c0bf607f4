"""A real Redis server for tests, on a free port of 127.0.0.1, with faults.

    with RedisServer() as server:
        ...  # server.url, server.command("SET", "key", "value")
        server.pause()

It keeps nothing on disk unless asked to, and ends with the block.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis

from tests.support.ports import free_port

START_S = 15.0


@dataclass(frozen=True)
class Options:
    """How a server is started. `maxmemory` in bytes, 0: no limit. `replica_of`: the port of its master."""

    password: str | None = None
    maxmemory: int = 0
    policy: str = "noeviction"
    appendonly: bool = False
    replica_of: int | None = None
    cluster: bool = False

    def arguments(self) -> list[str]:
        """As redis-server takes them."""
        pairs = {
            "maxmemory": str(self.maxmemory),
            "maxmemory-policy": self.policy,
            "appendonly": _yes(self.appendonly),
            "appendfsync": "always",
            "cluster-enabled": _yes(self.cluster),
            "cluster-node-timeout": "1000",
            "repl-diskless-sync-delay": "0",
            "save": "",
        }
        if self.password is not None:
            pairs |= {"requirepass": self.password, "masterauth": self.password}
        found = [text for name, value in pairs.items() for text in (f"--{name}", value)]
        return found if self.replica_of is None else [*found, "--replicaof", "127.0.0.1", str(self.replica_of)]


class RedisServer:
    """One redis-server, started when the block is entered."""

    def __init__(self, options: Options = Options()) -> None:
        self.options = options
        self.port = 0
        self._folder = tempfile.TemporaryDirectory(prefix="kvroute-redis-", ignore_cleanup_errors=True)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """With the password, where there is one."""
        password = "" if self.options.password is None else f":{self.options.password}@"
        return f"redis://{password}127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._folder.cleanup()

    def start(self) -> None:
        """Start, on the port of the last time where there was one, and wait until it answers."""
        for _ in range(20):
            port = self.port or free_port()
            if self._started(port):
                self.port = port
                return
        raise RuntimeError(f"redis-server did not start: {self.log()[-2000:]}")

    def stop(self) -> None:
        """End it in an orderly way."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(START_S)

    def kill(self) -> None:
        """kill -9, also when it is paused or has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(START_S)

    def pause(self) -> None:
        """SIGSTOP: connections stay and get no answer."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def restart(self, empty: bool = True) -> None:
        """kill -9, then start with nothing, or with what is on disk (which needs `appendonly`)."""
        self.kill()
        if empty:
            for path in Path(self._folder.name).iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.start()

    def lose_disk(self) -> None:
        """Its folder vanishes: what it writes from now on fails."""
        shutil.rmtree(self._folder.name)

    def command(self, *arguments: Any) -> Any:
        """The answer of one command, by a connection of its own."""
        options: dict[str, Any] = {"host": "127.0.0.1", "port": self.port, "password": self.options.password}
        with redis.Redis(**options, protocol=2, socket_timeout=5) as client:
            return client.execute_command(*arguments)

    def memory_bytes(self) -> int:
        """What it uses."""
        used: int = self.command("INFO", "memory")["used_memory"]
        return used

    def log(self) -> str:
        """What it wrote."""
        path = Path(self._folder.name) / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _started(self, port: int) -> bool:
        command = [_binary(), "--port", str(port), "--bind", "127.0.0.1", "--dir", self._folder.name]
        command += ["--logfile", "log", "--daemonize", "no", *self.options.arguments()]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        before, self.port = self.port, port
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            if self._answers():
                return True
            time.sleep(0.01)
        self.kill()
        self.port = before
        return False

    def _answers(self) -> bool:
        try:
            return bool(self._process and self.command("INFO", "server")["process_id"] == self._process.pid)
        except redis.RedisError:
            return False

    def _signal(self, number: int) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)


def wait_until(holds: Callable[[], bool], limit_s: float = START_S) -> None:
    """Poll until it holds; AssertionError after the limit."""
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def _binary() -> str:
    found = shutil.which("redis-server")
    if found is None:
        raise RuntimeError("redis-server is missing: apt-get install redis-server")
    return found


def _yes(value: bool) -> str:
    return "yes" if value else "no"
