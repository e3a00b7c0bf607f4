"""What benchmarks read off processes and routers: CPU time, resident memory, batches taken in."""

from __future__ import annotations

import gc
import os
import socket
import statistics
import time
from collections.abc import Callable
from pathlib import Path


def cpu_s(pid: int) -> float:
    """CPU time that a process has used, all its threads; finer than the clock ticks of /proc."""
    return time.clock_gettime(~pid << 3 | 2)  # clock_getcpuclockid(3)


def resident() -> int:
    """This process's memory in RAM, in bytes, after a garbage collection."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def us_per_call(call: Callable[[], object], rounds: int, calls: int, clock: Callable[[], float]) -> float:
    """Microseconds by `clock`: the median over rounds of so many calls each."""
    took = []
    for _ in range(rounds):
        began = clock()
        for _ in range(calls):
            call()
        took.append((clock() - began) / calls * 1e6)
    return statistics.median(took)


def applied_batches(port: int) -> float:
    """Event batches that the router on this port has taken in so far."""
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        page = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    lines = [line for line in page.splitlines() if line.startswith("kvroute_event_batches_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)
