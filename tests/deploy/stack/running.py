"""`make stack` as a process, and traffic through its gateway that never pauses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import httpx

ROOT = Path(__file__).parents[3]
START_S = 90.0
STOP_S = 20.0
MODEL = "tiny"


class RunningStack:
    """The stack on ports of its own, all of its health checks green, until the block ends."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kvroute-test-stack-")
        self._facts = Path(self._folder.name) / "facts.json"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with (Path(self._folder.name) / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "deploy.stack", "--describe", str(self._facts)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self.wait(self.all_healthy, START_S)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(signal.SIGTERM)
        self._folder.cleanup()

    def end(self, how: signal.Signals) -> int:
        """Signal it, if it runs; its exit status."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(how)
        return self._process.wait(STOP_S)

    def facts(self) -> dict[str, dict[str, Any]]:
        """By service: pid, addresses, health, starts."""
        found: dict[str, dict[str, Any]] = json.loads(self._facts.read_text()) if self._facts.exists() else {}
        return found

    def all_healthy(self) -> bool:
        """Whether every health check is green."""
        facts = self.facts()
        return bool(facts) and all(one["health"] == "healthy" for one in facts.values())

    def url(self, service: str) -> str:
        """A service's HTTP address."""
        return f"http://{self.facts()[service]['addresses'][0]}"

    def kill(self, service: str) -> int:
        """SIGKILL its process; the pid that is no more."""
        pid: int = self.facts()[service]["pid"]
        os.kill(pid, signal.SIGKILL)
        return pid

    def is_back(self, service: str, killed: int) -> bool:
        """Whether it has a new process and is healthy. A health from before the kill may still be told for a moment."""
        one = self.facts()[service]
        return one["pid"] not in (None, killed) and bool(one["health"] == "healthy")

    def wait(self, holds: Callable[[], bool], limit_s: float) -> float:
        """Until it holds; the seconds that took. AssertionError with the log after the limit or when the stack ends."""
        began = time.monotonic()
        while not holds():
            assert self._process is not None
            assert self._process.poll() is None, self.log()
            assert time.monotonic() - began < limit_s, self.log()
            time.sleep(0.02)
        return time.monotonic() - began

    def log(self) -> str:
        """What it wrote, and what its services are like."""
        return (Path(self._folder.name) / "log").read_text(errors="replace")[-4000:] + json.dumps(self.facts())


class Answer(NamedTuple):
    """One request's outcome: `status` is None where the connection broke. Times are those of time.monotonic."""

    began: float
    ended: float
    status: int | None
    text: str


class Traffic:
    """Completions through the gateway from several threads, each one after the other, until the block ends."""

    def __init__(self, gateway: str, threads: int = 3) -> None:
        self._gateway = gateway
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(number,), daemon=True) for number in range(threads)]
        self.answers: list[Answer] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30.0)
            assert not thread.is_alive()

    def _send(self, number: int) -> None:
        sent = 0
        with httpx.Client(base_url=self._gateway, timeout=20.0, trust_env=False) as client:
            while not self._stop.is_set():
                prompt = f"Conversation {number}.{sent % 8} goes on and on and is long enough for some blocks. " * 4
                body = {"model": MODEL, "prompt": prompt, "max_tokens": 8}
                sent += 1
                began = time.monotonic()
                try:
                    answer = client.post("/v1/completions", json=body)
                    self.answers.append(Answer(began, time.monotonic(), answer.status_code, answer.text[:300]))
                except httpx.TransportError as error:
                    self.answers.append(Answer(began, time.monotonic(), None, repr(error)))
