"""The demo's processes: the router and the stand-ins for engines. Started, watched, and all ended."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parent.parent
STOP_S = 5.0


class DemoFailed(Exception):
    """Why the demo cannot go on, in words for whoever ran it."""


class DemoProcesses:
    """Starts processes and ends them all when the block ends. Their output goes to files in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start_router(self, config: Path, port: int) -> None:
        """`kvroute serve`. It does not answer yet."""
        options = ["serve", "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
        with self._log("router").open("wb") as log:
            self._start("router", ["-m", "app.cli", *options], stdout=log.fileno(), stderr=log.fileno())

    def start_engine(self, name: str, recording: Path, model: str) -> None:
        """A stand-in for an engine. It publishes nothing yet."""
        with self._log(name).open("wb") as log:
            self._start(name, ["-m", "deploy.demo_engine", str(recording), model], subprocess.PIPE, log.fileno())

    def engine_url(self, name: str, timeout_s: float) -> str:
        """The URL that a stand-in serves at, as soon as it does. To be asked once."""
        process = self._running[name]
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], timeout_s)
        url = process.stdout.readline().decode().strip() if ready else ""
        if not url:
            raise DemoFailed(f"{name} did not start within {timeout_s:g} s\n{self._last_words(name)}")
        return url

    def publish(self, name: str, up_to_seq: int) -> None:
        """Let a stand-in publish its batches up to this number."""
        self.check()
        stdin = self._running[name].stdin
        assert stdin is not None
        try:
            stdin.write(f"{up_to_seq}\n".encode())
        except OSError as error:
            raise DemoFailed(f"{name} takes no orders: {error}\n{self._last_words(name)}") from None

    def check(self) -> None:
        """Raises DemoFailed when a process has ended."""
        for name, process in self._running.items():
            if (status := process.poll()) is not None:
                raise DemoFailed(f"{name} ended with status {status}\n{self._last_words(name)}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._running.values():
            process.terminate()
        end = time.monotonic() + STOP_S
        for process in self._running.values():
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def _start(self, name: str, arguments: list[str], stdout: int, stderr: int) -> None:
        """In a session of its own, so that Ctrl-C reaches the demo alone, which then ends the others."""
        self._running[name] = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if not name.upper().startswith("KVROUTE_")},
            stdin=subprocess.DEVNULL if name == "router" else subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            bufsize=0,
        )

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _last_words(self, name: str) -> str:
        return "\n".join(self._log(name).read_text(errors="replace").splitlines()[-15:])


def free_port(wanted: int = 0) -> int:
    """A port of this machine on which nobody listens now: `wanted` when given. DemoFailed when that is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
            probe.listen()
        except (OSError, OverflowError) as error:
            raise DemoFailed(f"port {wanted} cannot be used: {error}") from None
        port = probe.getsockname()[1]
    assert isinstance(port, int)
    return port
