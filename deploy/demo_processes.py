"""The demo's processes: the router and the engines. Started, watched, killed when the demo wants it, and all ended."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
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
        self.start("router", ["-m", "app.cli", *options], os.environ)

    def start(self, name: str, arguments: list[str], environment: Mapping[str, str]) -> None:
        """A Python process, without the settings of a router that this shell may have. In a session of its own, so
        that Ctrl-C reaches the demo alone, which then ends the others."""
        with self._log(name).open("ab") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=ROOT,
                env={name: value for name, value in environment.items() if not name.upper().startswith("KVROUTE_")},
                stdin=subprocess.DEVNULL,
                stdout=log.fileno(),
                stderr=log.fileno(),
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """SIGKILL; the process is gone when this returns, and is missed by nobody."""
        process = self._running.pop(name)
        process.kill()
        process.wait()

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
