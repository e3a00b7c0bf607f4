"""A real Prometheus for tests, on a free port of 127.0.0.1, with the settings and rules of deploy/prometheus.

    with PrometheusServer(config, {"router-0:8900": "127.0.0.1:40001"}) as server:
        server.value("sum(kvroute_prompt_tokens_total)")

Its data lies in a folder of its own and goes with the block.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import httpx

from tests.support.ports import free_port
from tests.support.service import wait_until

START_S = 30.0
ATTEMPTS = 3


class Sample(NamedTuple):
    """One series of an instant query's result."""

    labels: dict[str, str]
    value: float


class PrometheusServer:
    """Runs the settings file `config` and the rule files beside it, every address in them replaced as `addresses` says.

    `often`: in place of every interval of the settings, so that a test need not wait. Raises ValueError for an address
    that the settings do not hold.
    """

    def __init__(self, config: Path, addresses: Mapping[str, str], often: str | None = "1s") -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="prometheus-test-")
        self._config = Path(self._folder.name) / "etc"
        shutil.copytree(config.parent, self._config)
        file = self._config / config.name
        file.write_text(_often(_replaced(file.read_text(), addresses), often))
        self._file = file
        self._process: subprocess.Popen[bytes] | None = None
        self.http = httpx.Client(timeout=20.0, trust_env=False)

    def __enter__(self) -> Self:
        for _ in range(ATTEMPTS):  # a port may be taken between the look and the start
            if self._started(free_port()):
                return self
        raise RuntimeError(f"prometheus did not start: {self.log()[-2000:]}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill()
        self.http.close()
        self._folder.cleanup()

    def query(self, expression: str, at: float | None = None) -> list[Sample]:
        """An instant query, now or at a Unix time. AssertionError with Prometheus' words when it fails."""
        when = {} if at is None else {"time": str(at)}
        answer = self.http.get("/api/v1/query", params={"query": expression, **when}).json()
        assert answer["status"] == "success", (expression, answer)
        result, kind = answer["data"]["result"], answer["data"]["resultType"]
        assert kind == "vector", (expression, kind)
        return [Sample(one["metric"], float(one["value"][1])) for one in result]

    def value(self, expression: str) -> float:
        """The value of the only series of a query's result."""
        samples = self.query(expression)
        assert len(samples) == 1, (expression, samples)
        return samples[0].value

    def wait_for(self, expression: str, holds: Callable[[list[Sample]], bool], timeout_s: float = 30.0) -> None:
        """Until the result of a query is as wanted."""
        wait_until(lambda: holds(self.query(expression)), timeout_s, lambda: (expression, self.query(expression)))

    def targets(self) -> list[dict[str, Any]]:
        """What is scraped, with health and last error."""
        answer: list[dict[str, Any]] = self._get("targets")["activeTargets"]
        return answer

    def rules(self) -> list[dict[str, Any]]:
        """Every rule, with health and last error."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def log(self) -> str:
        """What it wrote."""
        return (Path(self._folder.name) / "log").read_text(errors="replace")

    def _get(self, path: str) -> dict[str, Any]:
        answer = self.http.get(f"/api/v1/{path}").json()
        assert answer["status"] == "success", answer
        data: dict[str, Any] = answer["data"]
        return data

    def _started(self, port: int) -> bool:
        folder = Path(self._folder.name)
        command = [_binary("prometheus"), f"--config.file={self._file}", f"--web.listen-address=127.0.0.1:{port}"]
        command += [f"--storage.tsdb.path={folder / 'data'}", "--storage.tsdb.retention.time=1d"]
        with (folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder)
        self.http.base_url = httpx.URL(f"http://127.0.0.1:{port}")
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            if self._is_ready():
                return True
            time.sleep(0.05)
        self._kill()
        return False

    def _is_ready(self) -> bool:
        try:
            return self.http.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10.0)


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the real promtool, at most two minutes."""
    return subprocess.run([_binary("promtool"), *arguments], capture_output=True, text=True, timeout=120, check=False)


def _replaced(text: str, addresses: Mapping[str, str]) -> str:
    for name, address in addresses.items():
        if f'"{name}"' not in text:
            raise ValueError(f"the settings hold no address {name}")
        text = text.replace(f'"{name}"', f'"{address}"')
    return text


def _often(text: str, interval: str | None) -> str:
    if interval is None:
        return text
    lines = text.splitlines()
    names = ("scrape_interval:", "evaluation_interval:", "scrape_timeout:")
    return "\n".join(
        f"{line.partition(':')[0]}: {interval}" if line.strip().startswith(names) else line for line in lines
    )


def _binary(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise RuntimeError(f"{name} is missing: apt-get install prometheus")
    return found
