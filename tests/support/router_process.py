"""The router as a process of its own, for tests that kill it: `kvroute serve` on a free port of 127.0.0.1."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from tests.support.ports import free_port
from tests.support.service import wait_until

ROOT = Path(__file__).parents[2]
START_S = 30.0


class RouterProcess:
    """`with RouterProcess(settings) as router`: starts it, and again after `kill`, always on the same port.

    `command` is what is run, with the port in place of `{port}`; the settings' file is in KVROUTE_CONFIG.
    """

    def __init__(self, settings: dict[str, Any], command: list[str] | None = None) -> None:
        self.settings = settings
        self._command = command or ["-m", "app.cli", "serve", "--port", "{port}"]
        self._folder = tempfile.TemporaryDirectory(prefix="kvroute-test-")
        self._process: subprocess.Popen[bytes] | None = None
        self._port = free_port()
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self._port}", timeout=10.0, trust_env=False)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self.http.close()
        self._folder.cleanup()

    def start(self) -> None:
        """Start the process; does not wait for it. The log goes on in the same file."""
        folder = Path(self._folder.name)
        (folder / "fleet.yaml").write_text(json.dumps(self.settings))
        own = {name: text for name, text in os.environ.items() if not name.startswith("KVROUTE_")}
        with (folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *(part.format(port=self._port) for part in self._command)],
                cwd=ROOT,
                env=own | {"KVROUTE_CONFIG": str(folder / "fleet.yaml")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """kill -9, with its children, also when it is paused or has ended."""
        if self._process is not None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self._process.wait(10)

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def reconnect(self) -> None:
        """Ask through a new connection: of several processes behind the port, any may answer it."""
        self.http.close()
        self.http = httpx.Client(base_url=self.http.base_url, timeout=10.0, trust_env=False)

    def stop(self) -> None:
        """SIGTERM, and wait for the end."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(20)

    def pause(self) -> None:
        """SIGSTOP."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def wait_until_ready(self) -> None:
        """Until `/readyz` is 200."""
        self.wait(lambda: self.http.get("/readyz").status_code == 200, START_S)

    def wait_for_seq(self, instance: str, seq: int, timeout_s: float = 15.0) -> None:
        """Until an instance's first rank has applied this batch last."""
        self.wait(lambda: self.worker(instance)["seq"] == seq, timeout_s)

    def wait(self, true: Callable[[], bool], timeout_s: float = 15.0) -> None:
        """Until something holds. The process must live; nobody listening counts as not yet."""

        def holds() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, self.log()[-3000:]
            try:
                return true()
            except httpx.TransportError:
                return False

        wait_until(holds, timeout_s, lambda: (self._seen(), self.log()[-3000:]))

    def instances(self) -> dict[str, dict[str, Any]]:
        """All instances by id."""
        return {one["id"]: one for one in self.http.get("/instances").json()["instances"]}

    def worker(self, instance: str) -> dict[str, Any]:
        """The first rank of an instance."""
        answer = self.http.get(f"/instances/{instance}")
        worker: dict[str, Any] = answer.json()["workers"][0] if answer.status_code == 200 else {"seq": None}
        return worker

    def route(self, tokens: list[int], **fields: Any) -> dict[str, Any]:
        """A dry run with explanation."""
        answer = self.http.post("/route", json={"token_ids": tokens, "dry_run": True, "explain": True, **fields})
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    def metric(self, line_start: str) -> float:
        """The sum of the series whose text starts so."""
        lines = self.http.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(line_start))

    def log(self) -> str:
        """What it wrote."""
        return (Path(self._folder.name) / "log").read_text(errors="replace")

    def log_entries(self, event: str) -> list[dict[str, Any]]:
        """Log entries of one event."""
        lines = [line for line in self.log().splitlines() if line.startswith("{")]
        return [entry for line in lines if (entry := json.loads(line))["event"] == event]

    def _seen(self) -> object:
        try:
            return self.http.get("/instances").json()
        except (httpx.TransportError, ValueError) as error:
            return repr(error)


def sleep_up_to(draw: Callable[[], float], most_s: float) -> None:
    """A random time."""
    time.sleep(draw() * most_s)
