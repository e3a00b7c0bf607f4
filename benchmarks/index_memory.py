"""What a held block costs in memory: `python -m benchmarks.index_memory`.

64 workers x 10,000 blocks of 16 tokens, all different (the worst case) and all shared, each in a process of its own.
Prints resident bytes per (worker, block), what `index_bytes` says, what is left after every worker was removed, and the
ratio to a reference: one Python set of workers per engine hash.
"""

from __future__ import annotations

import gc
import multiprocessing
import multiprocessing.connection
import os
import random
from pathlib import Path

from benchmarks.workload import filled
from index.worker import Worker

WORKERS = 64
BLOCKS = 9_984
KINDS = ("all different", "all shared", "reference")


def main() -> None:
    """Measure each case in a fresh process."""
    results = {kind: _in_process(kind) for kind in KINDS}
    reference = results["reference"][0]
    for kind in KINDS[:2]:
        held, said, left = results[kind]
        print(
            f"{kind:<14}: {held:6.1f} bytes per (worker, block) resident, {said:6.1f} by index_bytes, "
            f"{left:5.1f} after removal; reference {reference:.1f}; ratio {held / reference:.2f}"
        )


def _in_process(kind: str) -> tuple[float, float, float]:
    receive, send = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(target=_measure, args=(kind, send))
    process.start()
    result: tuple[float, float, float] = receive.recv()
    process.join(60)
    return result


def _measure(kind: str, send: multiprocessing.connection.Connection) -> None:
    count = WORKERS * BLOCKS
    filled(2, 1024)
    gc.collect()
    before = _resident()
    if kind == "reference":
        dice = random.Random(1)
        table = {dice.getrandbits(64): {number} for number in range(WORKERS) for _ in range(BLOCKS)}
        send.send(((_resident() - before) / count, 0.0, 0.0))
        table.clear()
        return
    index, _ = filled(WORKERS, BLOCKS, shared=kind == "all shared")
    gc.collect()
    held = (_resident() - before) / count
    said = sum(pool.size_bytes for pool in index.stats()) / count
    for number in range(WORKERS):
        index.remove(Worker(f"worker-{number}", 0))
    gc.collect()
    send.send((held, said, (_resident() - before) / count))


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
