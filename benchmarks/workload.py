"""Made-up workloads for the benchmarks: many workers that each hold long prompts, as event batches and as payloads."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator
from functools import cache

import msgspec

from index.event import BlockStored, EventBatch
from index.index import Index
from index.native import Core, chosen
from index.pool import WorkerSpec
from index.worker import EngineKind, Worker

BLOCK = 16
_ENCODER = msgspec.msgpack.Encoder()


def prompts(seed: int, count: int, blocks: int) -> Iterator[list[int]]:
    """`count` prompts of `blocks` whole blocks, all different from the first block on."""
    dice = random.Random(seed)
    for _ in range(count):
        yield [dice.randrange(128_000) for _ in range(blocks * BLOCK)]


def stored(tokens: list[int], hashes: list[int], parent: int | None = None) -> BlockStored:
    """One event that stores a run of blocks."""
    return BlockStored(list(hashes), parent, array("I", tokens).tobytes(), BLOCK)


def payload(tokens: list[int], hashes: list[int], parent: int | None = None, rank: int = 0) -> bytes:
    """The same as vLLM 0.32 sends it."""
    event = {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": BLOCK,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }
    return _ENCODER.encode([1.0, [event], rank])


def cores() -> list[Core]:
    """Both cores, or the Python one alone where the native one was not built."""
    return [chosen("python"), *([core] if (core := chosen("auto")).name == "native" else [])]


@cache
def worker_named(number: int) -> Worker:
    """One object per worker, as in the service: the index knows a worker by the object that requests ask with."""
    return Worker(f"worker-{number}", 0)


def filled(
    workers: int, blocks: int, run: int = 128, shared: bool = False, core: Core | None = None
) -> tuple[Index, list[list[int]]]:
    """An index of `workers` x `blocks` in runs of `run` blocks (`shared`: the same ones for all), and prompts held."""
    index, dice = Index(core), random.Random(1)
    held: list[list[int]] = []
    common = [(tokens, _hashes(dice, run)) for tokens in prompts(7, blocks // run, run)] if shared else []
    for number in range(workers):
        worker = worker_named(number)
        index.add(worker, WorkerSpec("m", EngineKind.VLLM))
        runs = common or [(tokens, _hashes(dice, run)) for tokens in prompts(1000 + number, blocks // run, run)]
        for tokens, hashes in runs:
            index.apply(worker, EventBatch(1.0, [stored(tokens, hashes)], 0))
        if not shared or number == 0:
            held.append(runs[0][0])
    return index, held


def _hashes(dice: random.Random, count: int) -> list[int]:
    return [dice.getrandbits(64) for _ in range(count)]
