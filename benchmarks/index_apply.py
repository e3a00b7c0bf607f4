"""How many stored blocks a second go from payload bytes into the index: `python -m benchmarks.index_apply`.

Prints, for both cores, blocks per CPU-second for events of 16 and 128 blocks into an index that holds 640,000 blocks,
and the ratio to a reference in the same run: msgspec's bare decoding and one set of workers per hash, without tokens.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from functools import partial

import msgspec

from benchmarks.workload import cores, filled, payload, prompts
from engine.wire import decode
from index.index import Index
from index.worker import EngineKind, Worker

EVENTS = 400
ROUNDS = 5
WORKER = Worker("worker-0", 0)


def main() -> None:
    """Fill, then apply new events and print."""
    for core in cores():
        index, _ = filled(workers=64, blocks=9_984, core=core)
        for run in (16, 128):
            ours, reference = [], []
            for round_ in range(ROUNDS):
                events = _events(run, round_)
                reference.append(_blocks_per_s(events, run, _reference()))
                ours.append(_blocks_per_s(events, run, partial(_apply, index)))
            mine, other = statistics.median(ours), statistics.median(reference)
            print(
                f"{core.name}, events of {run:>3} blocks: {mine:>10,.0f} blocks/CPU-s (lowest {min(ours):,.0f}); "
                f"reference {other:,.0f}; ratio {mine / other:.2f}"
            )


def _apply(index: Index, event: bytes) -> None:
    """As app/ingest.py does it for a worker whose hashes are verified."""
    applied = index.apply_payload(WORKER, event)
    if applied is None or applied.done < applied.events:
        index.apply(WORKER, decode(event, EngineKind.VLLM), applied=applied)


def _events(run: int, round_: int) -> list[bytes]:
    dice = random.Random(round_ * 1000 + run)
    return [
        payload(tokens, [dice.getrandbits(64) for _ in range(run)])
        for tokens in prompts(round_ * 77 + run, EVENTS, run)
    ]


def _reference() -> Callable[[bytes], None]:
    holders: dict[int, set[str]] = {}

    def apply(event: bytes) -> None:
        for stored in msgspec.msgpack.decode(event)[1]:
            for block in stored["block_hashes"]:
                holders.setdefault(block, set()).add("worker-0")

    return apply


def _blocks_per_s(events: list[bytes], run: int, apply: Callable[[bytes], None]) -> float:
    began = time.process_time()
    for event in events:
        apply(event)
    return len(events) * run / (time.process_time() - began)


if __name__ == "__main__":
    main()
