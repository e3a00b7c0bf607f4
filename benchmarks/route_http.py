"""What a routing request costs: `python -m benchmarks.route_http [seconds per case]`.

One server process (64 workers x 10,240 blocks of 16 tokens indexed), clients in this process. For 1k, 8k and 32k tokens
that one worker holds: requests per second and p50, p99 latency with 1 and with 16 connections, JSON and u32 bodies, and
the ratio to a reference served by the same process: FastAPI with a pydantic list[int] that only counts the tokens.
"""

from __future__ import annotations

import asyncio
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from pathlib import Path
from typing import NamedTuple

from benchmarks.state_fleet import cpu_s
from tests.support.ports import free_port

START_S = 120.0


class Measured(NamedTuple):
    """Requests per second, and latency in milliseconds."""

    rate: float
    p50: float
    p99: float


def main() -> None:
    """Start the server, measure every case, print."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 3.0
    with tempfile.TemporaryDirectory() as folder:
        port, prompt_file = free_port(), Path(folder) / "prompt.json"
        server = subprocess.Popen([sys.executable, "-m", "benchmarks.route_server", str(port), str(prompt_file)])
        try:
            _wait(port, server)
            _measure_all(port, json.loads(prompt_file.read_text()), server.pid, seconds)
        finally:
            server.terminate()
            server.wait(20)


def _measure_all(port: int, prompt: list[int], pid: int, seconds: float) -> None:
    for tokens in (1_024, 8_192, 32_768):
        ids = prompt[:tokens]
        body = json.dumps({"model": "m", "token_ids": ids, "dry_run": True}).encode()
        cases = {
            "reference": _request("/reference", body, "application/json"),
            "JSON": _request("/route", body, "application/json"),
            "u32": _request("/route?model=m&dry_run=true", array("I", ids).tobytes(), "application/octet-stream"),
        }
        reference: dict[int, Measured] = {}
        for name, request in cases.items():
            for connections in (1, 16):
                cpu = cpu_s(pid)
                got, count = asyncio.run(_load(port, request, connections, seconds))
                cpu_us = (cpu_s(pid) - cpu) / count * 1e6
                reference.setdefault(connections, got)
                print(
                    f"{tokens:>6} tokens {name:<9} {connections:>2} connections: {got.rate:>7.0f} req/s, "
                    f"p50 {got.p50:6.2f} ms, p99 {got.p99:6.2f} ms, {cpu_us:6.0f} us CPU per request, "
                    f"{got.rate / reference[connections].rate:5.2f} x reference"
                )


async def _load(port: int, request: bytes, connections: int, seconds: float) -> tuple[Measured, int]:
    end = time.perf_counter() + seconds
    took: list[float] = []
    began = time.perf_counter()
    await asyncio.gather(*(_client(port, request, end, took) for _ in range(connections)))
    elapsed = time.perf_counter() - began
    cuts = statistics.quantiles(took, n=100)
    return Measured(len(took) / elapsed, cuts[49] * 1000, cuts[98] * 1000), len(took)


async def _client(port: int, request: bytes, end: float, took: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while (began := time.perf_counter()) < end:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if b"content-length" in line)
        await reader.readexactly(length)
        took.append(time.perf_counter() - began)
    writer.close()
    await writer.wait_closed()


def _request(path: str, body: bytes, content_type: str) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _wait(port: int, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise SystemExit("the server did not start")


if __name__ == "__main__":
    main()
