"""What a held block costs in memory: `python -m benchmarks.index_memory`.

64 workers x 10,000 blocks of 16 tokens, all different (the worst case) and all shared, each core in a process of its
own; or as many workers and blocks as named: `python -m benchmarks.index_memory 1024 1000`. Tokens are drawn as bytes
and dropped at once, so that what is measured is the index. Prints resident bytes per (worker, block), what
`index_bytes` says, what is left after every worker was removed, and the ratio to a reference: one set per hash.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import random
import sys

from benchmarks.readings import resident
from benchmarks.workload import BLOCK, cores, worker_named
from index.block_hash import HashIdentity
from index.event import BlockStored, EngineHash, EventBatch
from index.index import Index
from index.native import chosen
from index.pool import WorkerSpec
from index.worker import EngineKind

WORKERS, BLOCKS, RUN = 64, 9_984, 128
KINDS = ("all different", "all shared")


def main() -> None:
    """Measure each case in a fresh process."""
    workers, blocks = map(int, sys.argv[1:3]) if len(sys.argv) > 2 else (WORKERS, BLOCKS)
    reference = _in_process(("reference", "", workers, blocks))[0]
    for kind in KINDS:
        for core in cores():
            held, said, left = _in_process((kind, core.name, workers, blocks))
            print(
                f"{core.name}, {kind:<14}: {held:6.1f} bytes per (worker, block) resident, {said:6.1f} by index_bytes, "
                f"{left:5.1f} after removal; reference {reference:.1f}; ratio {held / reference:.2f}"
            )


def _in_process(case: tuple[str, str, int, int]) -> tuple[float, float, float]:
    receive, send = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(target=_measure, args=(*case, send))
    process.start()
    result: tuple[float, float, float] = receive.recv()
    process.join(60)
    return result


def _measure(kind: str, core: str, workers: int, blocks: int, send: multiprocessing.connection.Connection) -> None:
    count = workers * blocks
    if kind == "reference":
        before, dice = resident(), random.Random(1)
        table = {dice.getrandbits(64): {number} for number in range(workers) for _ in range(blocks)}
        send.send(((resident() - before) / count, 0.0, 0.0))
        table.clear()
        return
    index = Index(chosen(core))
    _fill(index, 2, 1024, shared=False)
    for number in range(2):
        index.remove(worker_named(number))
    before = resident()
    _fill(index, workers, blocks, shared=kind == "all shared")
    held = (resident() - before) / count
    said = sum(pool.size_bytes for pool in index.stats()) / count
    for number in range(workers):
        index.remove(worker_named(number))
    send.send((held, said, (resident() - before) / count))


def _fill(index: Index, workers: int, blocks: int, shared: bool) -> None:
    """Workers of one hash domain, as a verified fleet is."""
    for number in range(workers):
        worker, dice = worker_named(number), random.Random(0 if shared else number)
        index.add(worker, WorkerSpec("m", EngineKind.VLLM))
        index.identify(worker, HashIdentity("sha256", "0"), shared=True)
        for _ in range(blocks // RUN):
            hashes: list[EngineHash] = [dice.getrandbits(64) for _ in range(RUN)]
            stored = BlockStored(hashes, None, dice.randbytes(RUN * BLOCK * 4), BLOCK)
            index.apply(worker, EventBatch(1.0, [stored], 0))


if __name__ == "__main__":
    main()
