"""Routing while Redis is ill: `python -m benchmarks.state_faults [seconds per phase] [rounds]`.

A real `kvroute serve` follows 8 real publishers that hold 10,000 blocks each and announce 20 batches a second (16
blocks stored, 16 removed), so that the write-behind is never idle. A client asks `/route` for 4,096 tokens, with 5 ms
between answer and question. Before each fault there is a healthy phase. Prints p50, p99 and the longest answer per
fault, the ratio of its p99 to that of the healthy phase before it, how many operations on the store failed (medians of
the rounds), and how long after the fault everything was in Redis again (the slowest). A wrong answer ends it.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import tempfile
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.state_fleet import Engines, Router, serving, stored_payload, stored_up_to, tokens_of
from tests.support.ports import free_port
from tests.support.redis_server import Options, RedisServer, wait_until

WORKERS = 8
RUN = 16
HELD_RUNS = 625
PROMPT = 256
PERIOD_S = 0.05
PAUSE_S = 0.005
WHOLE_WITHIN_S = 60.0
PASSWORD = "word"
HEALTHY = "healthy"


class Fault(NamedTuple):
    """What begins a fault, what is done again every second, and what ends it."""

    begin: Callable[[], object] = lambda: None
    again: Callable[[], object] = lambda: None
    end: Callable[[], object] = lambda: None


class Phase(NamedTuple):
    """Milliseconds of answers; failed operations; seconds until the state was whole again."""

    p50: float
    p99: float
    longest: float
    failed: float
    whole_s: float


class Bench(NamedTuple):
    """What a phase needs. `published` tells the number of the last batch."""

    router: Router
    server: RedisServer
    published: Callable[[], int]
    seconds: float


def main() -> None:
    """Run all faults, print."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    with (
        tempfile.TemporaryDirectory() as folder,
        RedisServer(Options(password=PASSWORD)) as server,
        _engines() as (instances, published),
        serving(Path(folder), free_port(), instances, state=server.url) as router,
    ):
        router.wait_for_exact(_prompt(), WORKERS)
        bench = Bench(router, server, published, seconds)
        _phase(bench, Fault())
        pairs = [
            (name, _phase(bench, Fault()), _phase(bench, fault))
            for _ in range(rounds)
            for name, fault in _faults(server).items()
        ]
    print(f"{rounds} rounds, {seconds:g} s per phase, {WORKERS} workers, {WORKERS / PERIOD_S:.0f} batches a second")
    print(f"{'Redis':<26}{'p50 ms':>8}{'p99 ms':>8}{'longest':>9}{'p99 ratio':>11}{'failed':>8}{'whole after s':>15}")
    _print(HEALTHY, [(healthy, healthy) for _, healthy, _ in pairs])
    for name in _faults(server):
        _print(name, [(healthy, ill) for fault, healthy, ill in pairs if fault == name])


def _print(name: str, pairs: list[tuple[Phase, Phase]]) -> None:
    p50, p99, longest, failed, _ = (
        statistics.median(values) for values in zip(*(ill for _, ill in pairs), strict=True)
    )
    ratio = statistics.median(ill.p99 / healthy.p99 for healthy, ill in pairs)
    whole = max(ill.whole_s for _, ill in pairs)
    print(f"{name:<26}{p50:>8.2f}{p99:>8.2f}{longest:>9.1f}{ratio:>11.2f}{failed:>8.0f}{whole:>15.1f}")


def _faults(server: RedisServer) -> dict[str, Fault]:
    def password(word: str) -> None:
        server.command("CONFIG", "SET", "requirepass", word)
        server.options = replace(server.options, password=word)
        server.command("CLIENT", "KILL", "TYPE", "normal")

    def memory(policy: str, share: float) -> None:
        limit = int(server.memory_bytes() * share)
        server.command("CONFIG", "SET", "maxmemory", limit, "maxmemory-policy", policy)

    def flush() -> object:
        return server.command("FLUSHALL")

    return {
        "hangs (SIGSTOP)": Fault(begin=server.pause, end=server.resume),
        "killed, restarted empty": Fault(begin=server.kill, end=server.restart),
        "FLUSHALL every second": Fault(begin=flush, again=flush),
        "evicts (allkeys-lru)": Fault(lambda: memory("allkeys-lru", 0.7), end=lambda: memory("noeviction", 0)),
        "full (noeviction)": Fault(lambda: memory("noeviction", 0.9), end=lambda: memory("noeviction", 0)),
        "another password": Fault(lambda: password("other"), end=lambda: password(PASSWORD)),
    }


def _phase(bench: Bench, fault: Fault) -> Phase:
    """Ask while the fault lasts, then wait until all that was published until then is stored."""
    failed = _failed(bench.router)
    fault.begin()
    took = sorted(_asked(bench.router, bench.seconds, fault.again))
    failed = _failed(bench.router) - failed
    fault.end()
    ended, published = time.monotonic(), bench.published()
    wait_until(lambda: stored_up_to(bench.server, WORKERS) >= published, WHOLE_WITHIN_S)
    whole_s = time.monotonic() - ended
    return Phase(took[len(took) // 2], took[len(took) * 99 // 100], took[-1], failed, whole_s)


def _asked(router: Router, seconds: float, again: Callable[[], object]) -> Iterator[float]:
    """Milliseconds of each answer."""
    body, headers = _prompt().tobytes(), {"content-type": "application/octet-stream"}
    second = time.perf_counter()
    until = second + seconds
    while (began := time.perf_counter()) < until:
        answer = router.http.post("/route?model=m&dry_run=true", content=body, headers=headers)
        yield (time.perf_counter() - began) * 1000
        assert answer.status_code == 200, answer.text
        assert answer.json()["matched_tokens"] == PROMPT * 16, answer.text
        if time.perf_counter() > second + 1:
            again()
            second = time.perf_counter()
        time.sleep(PAUSE_S)


def _failed(router: Router) -> float:
    lines = router.http.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("kvroute_state_errors_total"))


def _prompt() -> array[int]:
    return tokens_of(7, PROMPT)


@contextmanager
def _engines() -> Iterator[tuple[list[dict[str, Any]], Callable[[], int]]]:
    """Publishers in a process of their own: their settings, and a way to ask for the number of the last batch."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_publish, args=(theirs,))
    process.start()
    instances: list[dict[str, Any]] = ours.recv()

    def published() -> int:
        ours.send(True)
        number: int = ours.recv()
        return number

    try:
        yield instances, published
    finally:
        ours.send(False)
        process.join(20)


def _publish(asked: Connection) -> None:
    """One prompt that all hold for good; then as many runs as they hold; from then on one comes, the oldest goes."""
    with Engines(WORKERS) as engines:
        held = deque[bytes]()
        for publisher in engines.publishers:
            publisher.publish(stored_payload(_prompt()))
        for number in count(1):
            began = time.monotonic()
            tokens = tokens_of(1000 + number, RUN)
            held.append(tokens.tobytes())
            oldest = array("I", held.popleft()) if len(held) > HELD_RUNS else None
            payload = stored_payload(tokens, removed=oldest)
            for publisher in engines.publishers:
                publisher.publish(payload)
            if number == HELD_RUNS:
                asked.send(engines.instances())
            while number >= HELD_RUNS and asked.poll(max(0.0, began + PERIOD_S - time.monotonic())):
                if not asked.recv():
                    return
                asked.send(number)


if __name__ == "__main__":
    main()
