"""The index beside a peer's, in process: `python -m benchmarks.peer_index PYTHON`, as root.

The peer is the RadixTree of the package ai-dynamo-runtime, installed where PYTHON is; it runs in a network namespace
without any interface that is up. All hold 64 workers x 9,728 blocks of 16 tokens in runs of 512, each in a
process of its own. Prints microseconds per match of 512 blocks that one worker holds (median of rounds; hashes of the
peer are given to it, ours are made from the tokens in the call), resident bytes per (worker, block), and what is left
of them after everything was removed.
"""

from __future__ import annotations

import gc
import json
import os
import random
import statistics
import subprocess
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORKERS, RUNS, RUN = 64, 19, 512
CALLS, ROUNDS = 200, 5


def main() -> None:
    """Measure each in a process of its own, print."""
    print(f"{WORKERS} workers x {RUNS * RUN:,} blocks; load average {os.getloadavg()[0]:.1f}")
    script = str(Path(__file__).resolve())
    peer = _shown("peer", ["unshare", "--net", sys.argv[1], script, "--peer"])
    for core in ("python", "native"):
        own = _shown(core, [sys.executable, "-m", "benchmarks.peer_index", "--core", core])
        print(f"{'':>8} {own[0] / peer[0]:.2f} x the peer's time, {own[1] / peer[1]:.2f} x its memory", flush=True)


def _shown(name: str, command: list[str]) -> list[float]:
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=120)
    numbers: list[float] = json.loads(done.stdout.splitlines()[-1])
    match, held, left = numbers
    print(
        f"{name:>8} match {match:6.1f} us; {held:6.1f} bytes per (worker, block), {left:6.1f} after removal", flush=True
    )
    return numbers


def _of_peer() -> None:
    """Runs under the peer's Python, which has none of our packages."""
    import dynamo.llm as peer  # type: ignore[import-not-found]

    tree, dice = peer.RadixTree(), random.Random(1)
    before = _resident()
    prompt: list[int] = []
    for worker in range(WORKERS):
        for number in range(RUNS):
            local = [dice.getrandbits(63) for _ in range(RUN)]
            blocks = [{"block_hash": dice.getrandbits(63), "tokens_hash": one} for one in local]
            stored = {"stored": {"parent_hash": None, "blocks": blocks}}
            tree.apply_event(worker, json.dumps({"event_id": number, "data": stored, "dp_rank": 0}).encode())
            prompt = local
    scores = tree.find_matches(prompt).scores
    assert list(scores.values()) == [RUN], scores
    held = _per_block(before)
    match = _us(lambda: tree.find_matches(prompt))
    for worker in range(WORKERS):
        tree.remove_worker(worker)
    assert not tree.find_matches(prompt).scores
    print(json.dumps([match, held, _per_block(before)]))


def _of_core(name: str) -> None:
    from benchmarks.workload import BLOCK, worker_named  # not on top: the peer's Python has none of it
    from index.event import BlockStored, EngineHash, EventBatch
    from index.index import Index
    from index.native import chosen
    from index.pool import WorkerSpec
    from index.prompt import Prompt
    from index.worker import EngineKind

    index, dice = Index(chosen(name)), random.Random(1)
    workers = [worker_named(number) for number in range(WORKERS)]
    before, tokens = _resident(), b""
    for worker in workers:
        index.add(worker, WorkerSpec("m", EngineKind.VLLM))
        for _ in range(RUNS):
            tokens = array("I", [dice.randrange(128_000) for _ in range(RUN * BLOCK)]).tobytes()
            hashes: list[EngineHash] = [dice.getrandbits(63) for _ in range(RUN)]
            index.apply(worker, EventBatch(1.0, [BlockStored(hashes, None, tokens, BLOCK)], 0))
    del hashes
    prompt, only = Prompt(tokens), set(workers)
    assert max(match.matched for match in index.match("m", prompt, only).values()) == RUN * BLOCK
    held = _per_block(before)
    match = _us(lambda: index.match("m", prompt, only))
    for worker in workers:
        index.remove(worker)
    print(json.dumps([match, held, _per_block(before)]))


def _us(call: Callable[[], Any]) -> float:
    rounds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(CALLS):
            call()
        rounds.append((time.perf_counter() - began) / CALLS * 1e6)
    return statistics.median(rounds)


def _per_block(before: int) -> float:
    gc.collect()
    return (_resident() - before) / (WORKERS * RUNS * RUN)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    if sys.argv[1] == "--peer":
        _of_peer()
    elif sys.argv[1] == "--core":
        _of_core(sys.argv[2])
    else:
        main()
