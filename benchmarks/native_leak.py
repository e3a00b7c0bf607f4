"""Whether the native core's memory stays flat: `python -m benchmarks.native_leak [events]`.

Applies so many stored and removed blocks' events (10^7 unless said) through payloads over a bounded set of
blocks, a fifth of them with hashes of bytes, and prints resident memory ten times on the way. Flat: the last is as the
third.
"""

from __future__ import annotations

import random
import sys
import time

import msgspec

from benchmarks.readings import resident
from engine.wire import decode
from index.index import Index
from index.native import chosen
from index.pool import WorkerSpec
from index.worker import EngineKind, Worker

EVENTS_OF_A_BATCH = 50
WORKERS = [Worker(f"worker-{number}", 0) for number in range(4)]


def main() -> None:
    """Apply and print."""
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 10**7
    index, dice = Index(chosen("native")), random.Random(1)
    for worker in WORKERS:
        index.add(worker, WorkerSpec("m", EngineKind.VLLM))
    payloads = [_payload(dice) for _ in range(2_000)]
    batches, began = events // EVENTS_OF_A_BATCH, time.perf_counter()
    for number in range(batches):
        payload, worker = payloads[dice.randrange(len(payloads))], WORKERS[number % len(WORKERS)]
        applied = index.apply_payload(worker, payload, record=number % 2 == 0)
        if applied is None or applied.done < applied.events:
            index.apply(worker, decode(payload, EngineKind.VLLM), applied=applied)
        if (number + 1) % max(1, batches // 10) == 0:
            done = (number + 1) * EVENTS_OF_A_BATCH
            print(f"{done:>12,} events, {time.perf_counter() - began:6.1f} s: {resident() / 2**20:7.1f} MiB resident")


def _payload(dice: random.Random) -> bytes:
    return msgspec.msgpack.encode([1.0, [_event(dice) for _ in range(EVENTS_OF_A_BATCH)], 0])


def _event(dice: random.Random) -> dict[str, object]:
    first = dice.randrange(20_000)
    name = (lambda number: b"%032d" % number) if first % 5 == 0 else (lambda number: number)
    hashes = [name(first * 4 + at) for at in range(4)]
    if dice.random() < 0.5:
        return {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU"}
    tokens = [first] * 64
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": None,
        "token_ids": tokens,
        "block_size": 16,
    }


if __name__ == "__main__":
    main()
