"""A restarted router, until it answers exactly: `python -m benchmarks.state_warm_start [rounds]`.

64 workers x 10,000 blocks of 16 tokens in a real Redis. Their engines are real publishers, each with one batch more
than is stored; nobody answers at their HTTP side. A real `kvroute serve` is started, killed (-9) and started again.
Prints seconds from the process's start, and from just before its first read of Redis, until every worker is answered
for exactly, and the CPU time of the process until then: with all state in snapshots, with nearly all of it in logs,
and, as the reference in the same run, without Redis, from the engines' replay of all 10,000 blocks. Medians, slowest.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from array import array
from pathlib import Path
from typing import NamedTuple

from benchmarks.state_fleet import Engines, serving, stored_payload, stored_up_to, tokens_of
from tests.support.ports import free_port
from tests.support.redis_server import RedisServer, wait_until

WORKERS = 64
RUN = 125
RUNS = 80
TAIL = 16
SHORT_LOG, LONG_LOG = 10, 10_000
"""`snapshot_batches` of the router that stores the state."""
STORED_WITHIN_S = 60.0


class Start(NamedTuple):
    """Seconds until exact: since the process began; since its application did (just before Redis is read); of CPU."""

    whole_s: float
    own_s: float
    cpu_s: float


class Bench:
    """The engines with what they published, and the port that routers listen on in turn."""

    def __init__(self, engines: Engines, folder: Path) -> None:
        self.engines = engines
        self.folder = folder
        self.tails = 0
        self.port = free_port()

    def publish(self, runs: range) -> None:
        """So many batches of 125 blocks on each engine."""
        for run in runs:
            for number, publisher in enumerate(self.engines.publishers):
                publisher.publish(stored_payload(tokens_of(number * 1000 + run, RUN)))

    def publish_tail(self) -> array[int]:
        """One batch more on each engine; the prompt, which all hold then."""
        self.tails += 1
        tokens = tokens_of(10**6 + self.tails, TAIL)
        for publisher in self.engines.publishers:
            publisher.publish(stored_payload(tokens))
        return tokens

    def start(self, state: str, mark: str) -> Start:
        """Start a router, wait until it is exact, check what it holds, kill it."""
        tail = self.publish_tail()
        with serving(self.folder, self.port, self.engines.instances(), state=state) as router:
            exact = router.wait_for_exact(tail, WORKERS)
            cpu_s = router.cpu_s()
            for number in range(WORKERS):
                prompt = tokens_of(number * 1000 + number % RUNS, RUN)
                held = {one["instance"]: one["matched_tokens"] for one in router.candidates(prompt)}
                assert [name for name, tokens in held.items() if tokens] == [f"vllm-{number}"]
                assert held[f"vllm-{number}"] == len(prompt)
            return Start(exact - router.began, exact - router.logged_at(mark), cpu_s)

    def store(self, server: RedisServer, snapshot_batches: int, live: range) -> None:
        """Have a router put the state into an empty Redis; `live` is published while it runs."""
        server.command("FLUSHALL")
        tail, own = self.publish_tail(), {"snapshot_batches": snapshot_batches}
        with serving(self.folder, self.port, self.engines.instances(), state=server.url, state_store=own) as router:
            router.wait_for_exact(tail, WORKERS)
            wait_until(lambda: self._is_stored(server), STORED_WITHIN_S)
            self.publish(live)
            wait_until(lambda: self._is_stored(server), STORED_WITHIN_S)

    def _is_stored(self, server: RedisServer) -> bool:
        return stored_up_to(server, WORKERS) == self.engines.publishers[0].next_seq - 1


def main() -> None:
    """Fill, measure, print."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(f"{WORKERS} workers x {RUN * RUNS:,} blocks of 16 tokens, {rounds} rounds")
    with tempfile.TemporaryDirectory() as folder, RedisServer() as server:
        with Engines(WORKERS) as engines:
            bench = Bench(engines, Path(folder))
            bench.publish(range(RUNS))
            reference = [bench.start("memory://", "waiting for application startup") for _ in range(rounds)]
            usual = _printed("reference: from the engines' replay", reference)
            bench.store(server, SHORT_LOG, live=range(0))
            _measure("snapshots", bench, server, usual, rounds)
        with Engines(WORKERS) as engines:
            bench = Bench(engines, Path(folder))
            bench.publish(range(1))
            bench.store(server, LONG_LOG, live=range(1, RUNS))
            _measure("logs", bench, server, usual, rounds)


def _measure(name: str, bench: Bench, server: RedisServer, usual: Start, rounds: int) -> None:
    logged = sum(server.command("XLEN", key) for key in server.command("KEYS", "kvroute:*:log"))
    used = server.memory_bytes() / 1e6
    starts = [bench.start(server.url, "state store") for _ in range(rounds)]
    mine = _printed(f"from {name} ({logged / WORKERS:.0f} log entries per worker, Redis {used:.0f} MB)", starts)
    ratios = [own / reference for own, reference in zip(mine, usual, strict=True)]
    print(f"    ratio to the reference {ratios[0]:.2f}, {ratios[1]:.2f}, {ratios[2]:.2f}")


def _printed(name: str, starts: list[Start]) -> Start:
    median = Start(*(statistics.median(values) for values in zip(*starts, strict=True)))
    worst = Start(*(max(values) for values in zip(*starts, strict=True)))
    print(
        f"{name}: {median.whole_s:.2f} s from the process's start (slowest {worst.whole_s:.2f}), {median.own_s:.2f} s "
        f"from the first read (slowest {worst.own_s:.2f}), {median.cpu_s:.2f} s of CPU"
    )
    return median


if __name__ == "__main__":
    main()
