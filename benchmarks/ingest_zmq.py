"""Stored events from a publisher's process into a router over ZMQ: `python -m benchmarks.ingest_zmq [rounds]`.

A router (`kvroute serve`) follows one engine, whose hashes it verifies. Each round the engine publishes 160,000 blocks,
16 or 128 per message, as fast as it can, all of them new: between two rounds it says that its cache was emptied. Both
cores, each in a router of its own. Prints blocks per second until the last one is applied, and per CPU-second of the
router, all its threads together: medians, the lowest, and the ratio to a reference in the same run: a bare pyzmq loop
that receives the same messages in a process of its own and does nothing with them.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from benchmarks.readings import applied_batches, cpu_s
from benchmarks.waiting import wait_for_port
from benchmarks.workload import cores
from tests.support.ports import free_port

BLOCKS = 160_000
SETTLE_S = 2.0
WATCH_S, AT_REST = 0.02, 0.3
"""How often the router's CPU time is read, and the part of a CPU below which it has nothing left to apply."""
LIMIT_S = 60.0
RECEIVER = """
import sys, zmq
events = zmq.Context().socket(zmq.SUB)
events.set(zmq.RCVHWM, 0)
events.subscribe(b"")
events.connect(f"tcp://127.0.0.1:{sys.argv[1]}")
print("ready", flush=True)
while True:
    for _ in range(int(sys.argv[2])):
        events.recv_multipart()
    print("done", flush=True)
"""


class Rate(NamedTuple):
    """Blocks per second, and per CPU-second of the receiving process."""

    wall: float
    cpu: float


def main() -> None:
    """Measure the reference and both cores with each size of message, print."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(f"{BLOCKS:,} blocks a round, {rounds} rounds; load average {os.getloadavg()[0]:.1f}")
    for run in (16, 128):
        batches = BLOCKS // run
        reference = _reference(run, batches, rounds)
        print(f"{run:>3} blocks per message, bare receiving: {_shown(reference)}", flush=True)
        bare = statistics.median(rate.cpu for rate in reference)
        for core in cores():
            rates = _router(core.name, run, batches, rounds)
            ratio = statistics.median(rate.cpu for rate in rates) / bare
            print(f"{run:>3} blocks per message, {core.name}: {_shown(rates)}; ratio {ratio:.2f}", flush=True)


def _reference(run: int, batches: int, rounds: int) -> list[Rate]:
    with _publisher(run, batches) as (port, say):
        command = [sys.executable, "-c", RECEIVER, str(port), str(batches)]
        receiver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert receiver.stdout is not None
            answers = receiver.stdout
            answers.readline()
            time.sleep(SETTLE_S)
            return [_rate(receiver.pid, say, answers.readline) for _ in range(rounds + 1)][1:]
        finally:
            receiver.kill()
            receiver.wait(20)


def _router(core: str, run: int, batches: int, rounds: int) -> list[Rate]:
    with _publisher(run, batches) as (events, say), tempfile.TemporaryDirectory() as folder:
        port, file = free_port(), Path(folder) / "fleet.yaml"
        file.write_text(json.dumps(_settings(events)))
        serve = [sys.executable, "-m", "app.cli", "serve", "--config", str(file), "--port", str(port)]
        router = subprocess.Popen(serve, env={**os.environ, "KVROUTE_CORE": core})
        try:
            wait_for_port(port, router)
            time.sleep(SETTLE_S)
            rates = []
            for number in range(rounds + 1):
                goal = (number + 1) * (batches + 1)
                _say(say, "clear")
                _wait_for_applied(router.pid, port, goal - batches)
                rates.append(_rate(router.pid, say, lambda: _wait_for_applied(router.pid, port, goal)))  # noqa: B023 - called at once
            return rates[1:]
        finally:
            router.terminate()
            router.wait(20)


def _rate(pid: int, say: IO[str], wait: Callable[[], object]) -> Rate:
    """One round: the engine is told to publish, and `wait` returns once all of it was taken."""
    before, began = cpu_s(pid), time.monotonic()
    _say(say, "")
    wait()
    elapsed, used = time.monotonic() - began, cpu_s(pid) - before
    return Rate(BLOCKS / elapsed, BLOCKS / used)


def _say(say: IO[str], what: str) -> None:
    say.write(f"{what}\n")
    say.flush()


def _wait_for_applied(pid: int, port: int, goal: int) -> None:
    """Until so many batches were applied. Asked for when the router rests: the answer is CPU time of the router too."""
    end = time.monotonic() + LIMIT_S
    used = 0.0
    while True:
        if time.monotonic() > end:
            raise SystemExit(f"not all of {goal} batches were applied within {LIMIT_S:.0f} s")
        time.sleep(WATCH_S)
        before, used = used, cpu_s(pid)
        if used - before < AT_REST * WATCH_S and applied_batches(port) >= goal:
            return


@contextmanager
def _publisher(run: int, batches: int) -> Iterator[tuple[int, IO[str]]]:
    """The engine's process: its port, and what starts a round."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.event_publisher", str(port), str(run), str(batches)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        yield port, process.stdin
    finally:
        process.kill()
        process.wait(20)


def _settings(port: int) -> dict[str, object]:
    engine = {"id": "engine", "engine": "vllm", "model": "m", "dp_size": 1, "url": "http://127.0.0.1:9",
              "events": f"tcp://127.0.0.1:{port}"}  # fmt: skip
    quiet = {"load_interval_s": 3600.0, "discovery_interval_s": 3600.0}
    return {
        "instances": [engine],
        "polling": quiet,
        "log": {"level": "error"},
        "hash": {"algorithm": "sha256_cbor", "seed": "0"},
    }


def _shown(rates: list[Rate]) -> str:
    wall, cpu = statistics.median(rate.wall for rate in rates), statistics.median(rate.cpu for rate in rates)
    lowest = min(rate.cpu for rate in rates)
    return f"{wall:>10,.0f} blocks/s, {cpu:>10,.0f} per CPU-second (lowest {lowest:,.0f})"


if __name__ == "__main__":
    main()
