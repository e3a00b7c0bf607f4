"""Routing while engines send events: `python -m benchmarks.route_under_storm [batches per second] [seconds]`.

Claim: event storms never delay a route by more than 5 ms at the 99th percentile. A router (`kvroute serve`) follows 64
engines over ZMQ, which a process plays that stores and removes 16 blocks per batch. One client asks for 1,024 tokens
every few milliseconds; p50, p99 and the longest answer without events and with them, and the CPU time per batch.
On a machine with other work waiting times are that work's; the CPU time that the router used until it answered, all its
threads together, is its own.
Without an argument three rates are measured, the last one more than one process of Python can apply.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

from benchmarks.load_client import Request
from benchmarks.readings import applied_batches, cpu_s
from benchmarks.waiting import wait_for_port
from deploy.ports import free_ports
from index.native import CORE

ENGINES = 64
PAUSE_S = 0.004
SETTLE_S = 10.0
"""Until all engines are found, and asked what they are."""


def main() -> None:
    """Start both processes, measure, print."""
    rates = [float(sys.argv[1])] if len(sys.argv) > 1 else [1_000.0, 5_000.0, 20_000.0]
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 5.0
    port = free_ports(ENGINES + 2)
    http_port, ports = port + 1, list(range(port + 2, port + 2 + ENGINES))
    print(f"core: {CORE.name}; {ENGINES} engines; load average {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "fleet.yaml"
        settings.write_text(json.dumps(_settings(http_port, ports)))
        serve = [sys.executable, "-m", "app.cli", "serve", "--config", str(settings), "--port", str(port)]
        play = [sys.executable, "-m", "benchmarks.storm_publisher", str(http_port), *map(str, ports)]
        engines = subprocess.Popen(play, stdin=subprocess.PIPE, text=True)
        router = subprocess.Popen(serve)
        try:
            wait_for_port(port, router)
            time.sleep(SETTLE_S)
            assert engines.stdin is not None
            _show("no events", port, router.pid, seconds)
            for rate in rates:
                _tell(engines.stdin, rate)
                time.sleep(1)
                _show(f"{rate:,.0f} batches/s asked for", port, router.pid, seconds)
        finally:
            for process in (router, engines):
                process.terminate()
                process.wait(20)


def _show(name: str, port: int, pid: int, seconds: float) -> None:
    before, cpu = applied_batches(port), cpu_s(pid)
    began = time.monotonic()
    asked = _asked(port, pid, seconds)
    took, used = sorted(one for one, _ in asked), sorted(one for _, one in asked)
    elapsed = time.monotonic() - began
    applied, cpu_us = applied_batches(port) - before, (cpu_s(pid) - cpu) * 1e6
    cuts, cpu_cuts = statistics.quantiles(took, n=100), statistics.quantiles(used, n=100)
    events = f", {applied / elapsed:,.0f} batches/s applied, {cpu_us / applied:.0f} us CPU each" if applied else ""
    print(
        f"{name:<32} {len(took)} routes: p50 {cuts[49] * 1e3:.2f} ms, p99 {cuts[98] * 1e3:.2f} ms, "
        f"longest {took[-1] * 1e3:.2f} ms; CPU p50 {cpu_cuts[49] * 1e3:.2f} ms, p99 {cpu_cuts[98] * 1e3:.2f} ms, "
        f"most {used[-1] * 1e3:.2f} ms{events}",
        flush=True,
    )


def _asked(port: int, pid: int, seconds: float) -> list[tuple[float, float]]:
    """How long each answer took, and the CPU time that the router used meanwhile, in seconds."""
    body = json.dumps({"model": "m", "token_ids": list(range(1_024))}).encode()
    request, took = Request("/route", "application/json", body).wire, []
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            used = cpu_s(pid)
            connection.sendall(request)
            answer = connection.recv(65536)
            took.append((time.perf_counter() - began, cpu_s(pid) - used))
            assert answer.startswith(b"HTTP/1.1 200"), answer
            time.sleep(PAUSE_S)
    return took


def _tell(engines: IO[str], rate: float) -> None:
    engines.write(f"{rate}\n")
    engines.flush()


def _settings(http_port: int, ports: list[int]) -> dict[str, object]:
    engines = [
        {"id": f"engine-{number}", "engine": "vllm", "model": "m", "dp_size": 1,
         "url": f"http://127.0.0.1:{http_port}/{number}", "events": f"tcp://127.0.0.1:{port}"}
        for number, port in enumerate(ports)
    ]  # fmt: skip
    quiet = {"load_interval_s": 3600.0, "discovery_interval_s": 3600.0}
    return {"instances": engines, "polling": quiet, "log": {"level": "error"}, "hash": {"policy": "translate"}}


if __name__ == "__main__":
    main()
