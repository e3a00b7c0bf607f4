"""What the state store costs: `python -m benchmarks.state_store`. Needs redis-server.

64 workers x 10,000 blocks, a block being 17 bytes (engine hash, request key, medium and group):

- append: batches of 16 blocks, 64 of them (one per worker) in one call, per batch and per block, and of that the CPU
  time of this process; then the same for a replica that comes second and writes nothing;
- snapshots: bytes of Redis memory per (worker, block), and what zlib would save;
- load: all workers, without building an index.

Each against a reference in the same run: a field per block in a hash per worker, written by pipelined HSET (the same
64 x 16 blocks per round trip) and read by HGETALL.
"""

from __future__ import annotations

import asyncio
import os
import time
import zlib
from collections.abc import Awaitable, Callable

from redis.asyncio import Redis

from index.worker import Worker
from store.state import Entry, Lineage, Snapshot, StateStore
from store.state_url import open_store
from tests.support.redis_server import RedisServer

WORKERS = [Worker(f"vllm-{number}", 0) for number in range(64)]
BLOCKS = 10_000
BLOCK_BYTES = 17
BATCH = 16
BATCHES = 60
LINEAGE = Lineage(0, 1_700_000_000_000)


def main() -> None:
    """Measure in one server each."""
    with RedisServer() as server:
        appended = asyncio.run(_append(server))
    with RedisServer() as server:
        loaded = asyncio.run(_load(server))
    with RedisServer() as server:
        reference = asyncio.run(_reference(server))
    count = BATCHES * len(WORKERS)
    for name, (wall, cpu), other in (
        ("append", appended, reference["append"]),
        ("append, seen before", asyncio.run(_twice()), reference["append"]),
    ):
        per_batch = f"{wall / count * 1e6:7.1f} us per batch of {BATCH}, {wall / count / BATCH * 1e9:5.0f} ns per block"
        print(
            f"{name:<20}: {per_batch} ({cpu / count * 1e6:.1f} us CPU here); "
            f"reference {other / count * 1e6:.1f} us; ratio {wall / other:.2f}"
        )
    size, seconds = loaded
    print(
        f"snapshots           : {size:7.1f} bytes per (worker, block); reference {reference['size']:.1f};"
        f" ratio {size / reference['size']:.2f}; zlib 1 saves {_saved_by_zlib():.1f} %"
    )
    print(
        f"load                : {seconds:7.3f} s for {len(WORKERS)} x {BLOCKS:,} blocks; "
        f"reference {reference['load']:.3f} s; ratio {seconds / reference['load']:.3f}"
    )


async def _append(server: RedisServer) -> tuple[float, float]:
    store = open_store(server.url)
    await _offer_all(store, b"")
    spent = await _timed(lambda: _append_all(store, True))
    await store.close()
    return spent


async def _twice() -> tuple[float, float]:
    """What a replica pays for batches that another has written."""
    with RedisServer() as server:
        store = open_store(server.url)
        await _offer_all(store, b"")
        await _append_all(store, True)
        spent = await _timed(lambda: _append_all(store, False))
        await store.close()
    return spent


async def _append_all(store: StateStore, written: bool) -> None:
    for seq in range(1, BATCHES + 1):
        body = os.urandom(BATCH * BLOCK_BYTES)
        answers = await store.append([Entry(worker, LINEAGE, seq, seq, body) for worker in WORKERS])
        assert answers == [written] * len(WORKERS)


async def _load(server: RedisServer) -> tuple[float, float]:
    store = open_store(server.url)
    empty = server.memory_bytes()
    await _offer_all(store, None)
    size = (server.memory_bytes() - empty) / len(WORKERS) / BLOCKS
    started = time.perf_counter()
    loaded = await asyncio.gather(*(store.load(worker) for worker in WORKERS))
    seconds = time.perf_counter() - started
    assert all(one is not None and len(one.snapshot.body) == BLOCKS * BLOCK_BYTES for one in loaded)
    await store.close()
    return size, seconds


async def _reference(server: RedisServer) -> dict[str, float]:
    client = Redis(port=server.port, protocol=2)
    await client.ping()
    empty = server.memory_bytes()
    wall, _ = await _timed(lambda: _hset_all(client, 0, BATCHES))
    await _hset_all(client, BATCHES, BLOCKS // BATCH)
    size = (server.memory_bytes() - empty) / len(WORKERS) / BLOCKS
    started = time.perf_counter()
    loaded = await asyncio.gather(*(client.hgetall(_name(worker)) for worker in WORKERS))
    seconds = time.perf_counter() - started
    assert all(len(one) == BLOCKS for one in loaded)
    await client.aclose()
    return {"append": wall, "size": size, "load": seconds}


async def _hset_all(client: Redis, first: int, last: int) -> None:
    for _ in range(first, last):
        pipeline = client.pipeline(transaction=False)
        for worker in WORKERS:
            pipeline.hset(_name(worker), mapping={os.urandom(8): os.urandom(9) for _ in range(BATCH)})
        await pipeline.execute()


async def _offer_all(store: StateStore, body: bytes | None) -> None:
    for worker in WORKERS:
        filled = os.urandom(BLOCKS * BLOCK_BYTES) if body is None else body
        await store.offer(Snapshot(worker, LINEAGE, 0, 0, None, filled))


async def _timed(work: Callable[[], Awaitable[None]]) -> tuple[float, float]:
    started, cpu = time.perf_counter(), time.process_time()
    await work()
    return time.perf_counter() - started, time.process_time() - cpu


def _saved_by_zlib() -> float:
    """Of random hashes, all on the GPU and in group 0: nothing else can be saved."""
    body = b"".join(os.urandom(BLOCK_BYTES - 1) + b"\0" for _ in range(BLOCKS))
    return 100 - 100 * len(zlib.compress(body, 1)) / len(body)


def _name(worker: Worker) -> str:
    return f"reference:{worker.instance}"


if __name__ == "__main__":
    main()
