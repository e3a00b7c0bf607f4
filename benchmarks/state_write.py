"""What keeping the state costs: `python -m benchmarks.state_write`.

Batches of 16 and of 128 blocks are applied and handed to the write-behind, which brings them to a real Redis. One
worker, steady state: a snapshot is there, entries are appended. Prints CPU microseconds per batch and per block: of
applying alone (the reference, in the same run), of applying with the hand-over, and of the whole process until all is
written. Medians of rounds. Then the memory that Redis needs per (worker, block), by MEMORY USAGE: of snapshots of
10,000 blocks and of logs, for vLLM's usual 64-bit hashes, for its 32-byte hashes, and for SGLang, with tokens.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Iterator
from typing import NamedTuple

from app.followed import Saved
from app.metrics import Metrics
from app.state_limits import WriterLimits
from app.state_writer import StateWriter
from benchmarks.workload import prompts, stored
from index.block_hash import HashIdentity
from index.event import BlockStored, EngineHash, EventBatch
from index.index import Index
from index.pool import WorkerSpec
from index.worker import EngineKind, Trust, Worker
from store.keys import worker_keys
from store.state import StateStore
from store.state_url import open_store
from tests.support.redis_server import RedisServer

ROUNDS = 5
BATCHES = 1_000
MEMORY_BLOCKS = 10_000
MEMORY_RUN = 125
WORKER = Worker("worker-0", 0)
NEVER = WriterLimits(snapshot_batches=10_000)
"""No snapshot while entries are counted."""


class Cost(NamedTuple):
    """CPU microseconds per batch."""

    applied: float
    handed_over: float
    written: float


def main() -> None:
    """Measure, print."""
    with RedisServer() as server:
        for run in (16, 128):
            rounds = [asyncio.run(_round(server, run, seed)) for seed in range(ROUNDS)]
            cost = Cost(*(statistics.median(values) for values in zip(*rounds, strict=True)))
            print(
                f"batches of {run:>3} blocks: {cost.applied:7.1f} us to apply (reference); "
                f"{cost.handed_over - cost.applied:+6.1f} us to hand over ({cost.handed_over / cost.applied:.2f} x), "
                f"{cost.written - cost.applied:+6.1f} us until written ({cost.written / cost.applied:.2f} x), "
                f"{(cost.written - cost.applied) / run:.2f} us per block"
            )
        for name, engine, hash_bytes in (
            ("vLLM, 64-bit hashes", EngineKind.VLLM, 8),
            ("vLLM, 32-byte hashes", EngineKind.VLLM, 32),
            ("SGLang, pages of 16", EngineKind.SGLANG, 8),
        ):
            snapshot, log = asyncio.run(_memory(server, engine, hash_bytes))
            print(f"{name:<20}: {snapshot:5.1f} bytes per (worker, block) in a snapshot, {log:5.1f} in a log")


async def _round(server: RedisServer, run: int, seed: int) -> Cost:
    server.command("FLUSHALL")
    batches = [EventBatch(1.0, [event], 0) for event in _events(seed * 10_000 + run, BATCHES, run, 8)]
    plain = _index(EngineKind.VLLM)
    began = time.process_time()
    for batch in batches:
        plain.apply(WORKER, batch)
    applied = time.process_time() - began
    store, index = open_store(server.url), _index(EngineKind.VLLM)
    writer = StateWriter(store, index, Metrics(), NEVER)
    await _begin(writer, store, index, next(_events(-1, 1, run, 8)))
    began = time.process_time()
    for seq, batch in enumerate(batches, 1):
        _hand_over(writer, index, seq, batch)
    handed_over = time.process_time() - began
    await writer.drain(30)
    written = time.process_time() - began
    assert await store.log_length(WORKER) == BATCHES
    await store.close()
    return Cost(*(seconds / BATCHES * 1e6 for seconds in (applied, handed_over, written)))


async def _memory(server: RedisServer, engine: EngineKind, hash_bytes: int) -> tuple[float, float]:
    server.command("FLUSHALL")
    store, index = open_store(server.url), _index(engine)
    writer = StateWriter(store, index, Metrics(), NEVER)
    first, *events = _events(1, MEMORY_BLOCKS // MEMORY_RUN, MEMORY_RUN, hash_bytes)
    await _begin(writer, store, index, first)
    for seq, event in enumerate(events, 1):
        _hand_over(writer, index, seq, EventBatch(1.0, [event], 0))
    await writer.drain(30)
    log = server.command("MEMORY", "USAGE", worker_keys(WORKER).log, "SAMPLES", 0)
    writer.began(WORKER)
    _hand_over(writer, index, MEMORY_BLOCKS, EventBatch(20.0, [], 0))
    await writer.drain(30)
    assert await store.log_length(WORKER) == 0
    assert sum(index.counts(WORKER)) == MEMORY_BLOCKS
    snapshot = server.command("MEMORY", "USAGE", worker_keys(WORKER).snapshot, "SAMPLES", 0)
    await store.close()
    return snapshot / MEMORY_BLOCKS, log / (MEMORY_BLOCKS - MEMORY_RUN)


async def _begin(writer: StateWriter, store: StateStore, index: Index, event: BlockStored) -> None:
    """The first batch of a process: its snapshot is stored."""
    writer.began(WORKER)
    writer.identified(WORKER, HashIdentity("sha256_cbor", "0"), shared=True)
    _hand_over(writer, index, 0, EventBatch(1.0, [event], 0))
    await writer.drain(30)
    assert await store.load(WORKER) is not None


def _hand_over(writer: StateWriter, index: Index, seq: int, batch: EventBatch) -> None:
    delta = index.apply(WORKER, batch, record=True)
    writer.applied(WORKER, Saved(seq, int(batch.ts * 1000), Trust.EXACT, b"8 octets"), delta.operations)


def _events(seed: int, count: int, run: int, hash_bytes: int) -> Iterator[BlockStored]:
    dice = random.Random(seed)
    for tokens in prompts(seed, count, run):
        hashes: list[EngineHash] = [
            dice.getrandbits(63) if hash_bytes == 8 else dice.randbytes(hash_bytes) for _ in range(run)
        ]
        yield stored(tokens, [])._replace(block_hashes=hashes)


def _index(engine: EngineKind) -> Index:
    index = Index()
    index.add(WORKER, WorkerSpec("m", engine))
    return index


if __name__ == "__main__":
    main()
