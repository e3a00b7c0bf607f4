"""What a routing request costs: `python -m benchmarks.route_http [seconds per case] [rounds]`.

One server process with 64 workers x 10,240 blocks of 16 tokens indexed; 16 keep-alive connections of a client in
another process. For 1k, 8k and 32k tokens that one worker holds, as JSON and as u32: requests per second, p50 and p99
latency, and the server's CPU time per request. Each case is measured on the short way, under uvicorn's own protocol,
and, as a reference, at a FastAPI endpoint in the same process with a pydantic list[int] that only counts its tokens.
The median of the rounds is shown. "dry": the request leaves no trace (`dry_run`).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.load_client import NAME, Request, measured
from benchmarks.readings import cpu_s
from benchmarks.waiting import wait_for_port
from index.native import CORE
from tests.support.ports import free_port

CONNECTIONS = 16


class Cost(NamedTuple):
    """Of one round."""

    rate: float
    p50_ms: float
    p99_ms: float
    cpu_us: float


def main() -> None:
    """Start the servers, measure every case, print."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    print(f"client: {NAME}, {CONNECTIONS} connections; core: {CORE.name}; load average {os.getloadavg()[0]:.1f}")
    with server("short") as (port, pid, prompt):
        reference: dict[int, float] = {}
        for name, tokens, request in cases(prompt):
            reference[tokens] = show(name, tokens, port, pid, request, seconds, rounds, reference.get(tokens))
    with server("ordinary") as (port, pid, prompt):
        for name, tokens, request in cases(prompt):
            if name == "JSON, dry":
                show("ordinary way", tokens, port, pid, request, seconds, rounds, reference[tokens])


def cases(prompt: list[int]) -> Iterator[tuple[str, int, Request]]:
    """Name, number of tokens and request. The first of each number is the reference."""
    for tokens in (1_024, 8_192, 32_768):
        fields = {"model": "m", "token_ids": prompt[:tokens]}
        body = json.dumps(fields).encode()
        dry = json.dumps({**fields, "dry_run": True}).encode()
        octets = array("I", prompt[:tokens]).tobytes()
        yield "reference", tokens, Request("/reference", "application/json", body)
        yield "JSON, dry", tokens, Request("/route", "application/json", dry)
        yield "JSON", tokens, Request("/route", "application/json", body)
        yield "u32, dry", tokens, Request("/route?model=m&dry_run=true", "application/octet-stream", octets)


def show(
    name: str, tokens: int, port: int, pid: int, request: Request, seconds: float, rounds: int, reference: float | None
) -> float:
    """Measure a case and print it; the rate of the reference."""
    costs = [cost(port, pid, request, seconds) for _ in range(rounds)]
    rate, p50_ms, p99_ms, cpu_us = (statistics.median(column) for column in zip(*costs, strict=True))
    reference = reference if reference is not None and name != "reference" else rate
    print(
        f"{tokens:>6} tokens {name:<13} {rate:>7.0f} req/s, p50 {p50_ms:6.2f} ms, p99 {p99_ms:6.2f} ms, "
        f"{cpu_us:6.0f} us CPU per request, {rate / reference:5.2f} x reference",
        flush=True,
    )
    return reference


def cost(port: int, pid: int, request: Request, seconds: float) -> Cost:
    """One round."""
    before = cpu_s(pid)
    got = measured(port, request, CONNECTIONS, seconds)
    return Cost(got.rate, got.p50_ms, got.p99_ms, (cpu_s(pid) - before) / got.requests * 1e6)


@contextmanager
def server(way: str) -> Iterator[tuple[int, int, list[int]]]:
    """The server's port, its process, and a prompt that one worker holds."""
    with tempfile.TemporaryDirectory() as folder:
        port, prompt_file = free_port(), Path(folder) / "prompt.json"
        process = subprocess.Popen([sys.executable, "-m", "benchmarks.route_server", str(port), str(prompt_file), way])
        try:
            wait_for_port(port, process)
            yield port, process.pid, json.loads(prompt_file.read_text())
        finally:
            process.terminate()
            process.wait(20)


if __name__ == "__main__":
    main()
