"""Decoding KV events: `python -m benchmarks.wire_decode`.

Claim: decoding a 128-block event costs well under 100 us, less than twice what bare MessagePack decoding costs.
Best of several rounds, one process, one core; the bare figure is from the same run.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import msgspec

from engine.wire import decode
from index.event import BlockStored
from index.worker import EngineKind

BLOCK_SIZE = 16
ROUNDS = 15
ROUND_S = 0.1


def main() -> None:
    print(f"{'event':<28}{'us/event':>10}{'blocks/s':>14}{'bare us':>10}{'ratio':>8}")
    for engine, blocks, size in (
        (EngineKind.VLLM, 16, BLOCK_SIZE),
        (EngineKind.VLLM, 128, BLOCK_SIZE),
        (EngineKind.SGLANG, 16, BLOCK_SIZE),
        (EngineKind.SGLANG, 128, BLOCK_SIZE),
        (EngineKind.SGLANG, 2048, 1),
    ):
        report(engine, blocks, size)


def report(engine: EngineKind, blocks: int, size: int) -> None:
    payload = stored(engine, blocks, size)
    assert isinstance(decode(payload, engine).events[0], BlockStored)
    full, bare = fastest_us([lambda: decode(payload, engine), lambda: msgspec.msgpack.decode(payload)])
    name = f"{engine} {blocks} x {size} tokens"
    print(f"{name:<28}{full:>10.1f}{blocks / full * 1e6:>14,.0f}{bare:>10.1f}{full / bare:>8.2f}")


def stored(engine: EngineKind, blocks: int, size: int) -> bytes:
    """A batch with one map event, as the current release sends it."""
    draw = random.Random(blocks)
    event: dict[str, object] = {
        "type": "BlockStored",
        "block_hashes": [
            draw.getrandbits(64) if engine is EngineKind.VLLM else draw.getrandbits(64) - 2**63 for _ in range(blocks)
        ],
        "parent_block_hash": draw.getrandbits(63),
        "token_ids": [draw.randrange(128_000) for _ in range(blocks * size)],
        "block_size": size,
        "lora_id": None,
        "medium": "GPU",
    }
    if engine is EngineKind.VLLM:
        event |= {
            "lora_name": None,
            "extra_keys": [None] * blocks,
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }
    return msgspec.msgpack.encode([time.time(), [event], 0])


def fastest_us(calls: list[Callable[[], object]]) -> list[float]:
    """Per call the best round's mean; rounds alternate between the calls, so both see the same machine."""
    best = [float("inf")] * len(calls)
    for _ in range(ROUNDS):
        for which, call in enumerate(calls):
            count, start = 0, time.perf_counter()
            while (elapsed := time.perf_counter() - start) < ROUND_S / len(calls):
                for _ in range(20):
                    call()
                count += 20
            best[which] = min(best[which], elapsed / count * 1e6)
    return best


if __name__ == "__main__":
    main()
