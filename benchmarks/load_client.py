"""Clients that send one request over and over on keep-alive connections, in a process of their own.

wrk where it is installed (Debian: `apt-get install wrk`), else an asyncio client, which costs more than the server.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

NAME = "wrk" if shutil.which("wrk") else "asyncio client"

_SCRIPT = """
local file = io.open("{body}", "rb")
wrk.method, wrk.body = "POST", file:read("*a")
wrk.headers["Content-Type"] = "{form}"
file:close()
function done(summary, latency, requests)
  local errors = summary.errors
  local failed = errors.status + errors.connect + errors.read + errors.write
  local form = '{{"count": %d, "failed": %d, "elapsed_us": %d, "p50_us": %d, "p99_us": %d}}\\n'
  local half, most = latency:percentile(50), latency:percentile(99)
  io.write(string.format(form, summary.requests, failed, summary.duration, half, most))
end
"""


class Measured(NamedTuple):
    """Requests per second and their number; latency in milliseconds."""

    rate: float
    requests: int
    p50_ms: float
    p99_ms: float


class Request(NamedTuple):
    """A POST to a path with a query."""

    path: str
    form: str
    body: bytes

    @property
    def wire(self) -> bytes:
        """The request as it is sent."""
        head = f"POST {self.path} HTTP/1.1\r\nhost: x\r\ncontent-type: {self.form}\r\ncontent-length: {len(self.body)}"
        return head.encode() + b"\r\n\r\n" + self.body


def measured(port: int, request: Request, connections: int, seconds: float) -> Measured:
    """What clients on this machine get. SystemExit when any answer is not a 200."""
    with tempfile.TemporaryDirectory() as folder:
        body = Path(folder) / "body"
        if NAME == "wrk":
            body.write_bytes(request.body)
            script = Path(folder) / "script.lua"
            script.write_text(_SCRIPT.format(body=body, form=request.form))
            url = f"http://127.0.0.1:{port}{request.path}"
            asked = ["wrk", "-t1", "--timeout", "30s", f"-c{connections}", f"-d{seconds:g}s", "-s", str(script), url]
        else:
            body.write_bytes(request.wire)
            asked = [sys.executable, "-m", __name__, str(port), str(body), str(connections), str(seconds)]
        said = subprocess.run(asked, capture_output=True, text=True, timeout=seconds + 60, check=True).stdout
    found = json.loads(said.splitlines()[-1])
    if found["failed"] or not found["count"]:
        raise SystemExit(f"{request.path}: {found['failed']} of {found['count']} answers failed")
    rate = found["count"] / found["elapsed_us"] * 1e6
    return Measured(rate, found["count"], found["p50_us"] / 1000, found["p99_us"] / 1000)


async def _load(port: int, request: bytes, connections: int, seconds: float) -> dict[str, float]:
    took: list[float] = []
    began = time.perf_counter()
    failed = sum(await asyncio.gather(*(_client(port, request, began + seconds, took) for _ in range(connections))))
    elapsed, cuts = time.perf_counter() - began, statistics.quantiles(took, n=100)
    return {
        "count": len(took),
        "failed": failed,
        "elapsed_us": elapsed * 1e6,
        "p50_us": cuts[49] * 1e6,
        "p99_us": cuts[98] * 1e6,
    }


async def _client(port: int, request: bytes, end: float, took: list[float]) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    failed = 0
    while (began := time.perf_counter()) < end:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        failed += not head.startswith(b"HTTP/1.1 200")
        length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if b"content-length" in line)
        await reader.readexactly(length)
        took.append(time.perf_counter() - began)
    writer.close()
    await writer.wait_closed()
    return failed


if __name__ == "__main__":
    loaded = _load(int(sys.argv[1]), Path(sys.argv[2]).read_bytes(), int(sys.argv[3]), float(sys.argv[4]))
    print(json.dumps(asyncio.run(loaded)))
