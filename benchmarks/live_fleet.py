"""CPU engines as processes for the live benchmark: all started at once, waited for, and ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import httpx

from tests.support.ports import free_ports

START_S: Final = 120.0
"""Long enough for several processes that load torch on a busy machine."""

STOP_S: Final = 10.0
ROOT: Final = Path(__file__).parents[1]


@contextmanager
def running_engines(count: int, arguments: Sequence[str]) -> Iterator[list[str]]:
    """Their URLs. RuntimeError when one ends or does not answer in time."""
    with ExitStack() as stack:
        started = []
        for _ in range(count):
            port = free_ports(3)
            ports = ["--port", str(port), "--events-port", str(port + 1), "--replay-port", str(port + 2)]
            command = [sys.executable, "-m", "deploy.engine", *arguments, *ports]
            process = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": "0"})
            stack.callback(_end, process)
            started.append((f"http://127.0.0.1:{port}", process))
        end = time.monotonic() + START_S
        for url, process in started:
            _wait(url, process, end)
        yield [url for url, _ in started]


def _wait(url: str, process: subprocess.Popen[bytes], end: float) -> None:
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"an engine ended with status {process.returncode}")
        try:
            if httpx.get(f"{url}/health", timeout=1.0, trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise RuntimeError(f"an engine did not answer within {START_S:g} s")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
