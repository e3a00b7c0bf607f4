"""Speed of the radix index, both cores in one run: `python -m benchmarks.radix_match`.

Prints microseconds per match of an 8,192-token prompt at page sizes 1 and 16, per stored, removed and cleared page,
per page of a restored dump and of an event payload, and what removing 130,000 pages last to first takes, which
engines do. Times of pages are CPU time of this process.
"""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from benchmarks.radix_memory import Trie, cores, runs
from engine.wire import decode
from index.delta import Delta
from index.event import BlockRemoved, BlockStored, EngineHash
from index.index import Index
from index.native import Core
from index.pool import WorkerSpec
from index.radix_native import AnyRadixIndex, radix_index
from index.worker import EngineKind, Worker

PROMPT = 8192
FLOOD = 200_000
LONG = 130_000
WORKER = Worker("one", 0)
Event = TypeVar("Event")


def microseconds(call: Callable[[], object], times: int) -> float:
    """The best of five rounds, per call."""
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(times):
            call()
        best = min(best, time.perf_counter() - start)
    return best / times * 1e6


def per_page(call: Callable[[], object], pages: int) -> float:
    """CPU time of one call in microseconds per page."""
    start = time.process_time()
    call()
    return (time.process_time() - start) / pages * 1e6


def each(events: Iterable[Event], call: Callable[[Event], object]) -> None:
    for event in events:
        call(event)


def chunk(tokens: array[int], start: int, stop: int, page_size: int = 1) -> BlockStored:
    pages: list[EngineHash] = list(range(start // page_size + 1, stop // page_size + 1))
    return BlockStored(pages, start or None, tokens[start:stop].tobytes(), page_size)


def fleet(core: Core, tokens: array[int], workers: int, page_size: int) -> AnyRadixIndex:
    """Workers that hold prefixes of different lengths, so that the path is cut into a run per length."""
    index, delta = radix_index(page_size, 4, core), Delta()
    for slot in range(workers):
        index.add(slot)
        length = PROMPT * (slot + 1) // workers // page_size * page_size
        index.store(slot, chunk(tokens, 0, length, page_size), "", delta)
    return index


def walk(trie: Trie, tokens: array[int]) -> int:
    node, depth = trie.root, 0
    for token in tokens:
        if token not in node:
            break
        node, depth = node[token], depth + 1
    return depth


def matches(core: Core, tokens: array[int]) -> None:
    prompt = tokens.tobytes()
    for page_size in (1, 16):
        for workers in (1, 64, 256, 1024) if page_size == 1 else (1, 64, 256):
            index = fleet(core, tokens, workers, page_size)
            everyone = (1 << workers) - 1
            spent = microseconds(lambda: index.match(prompt, [""], everyone), 100)  # noqa: B023  called at once
            runs = f"{workers:4} workers in {index.node_count:4} runs"
            print(f"  match 8,192 tokens, page size {page_size:2}, {runs}: {spent:7.1f} us")


def flood(core: Core) -> None:
    """Store many runs, remove half of them, dump and restore the rest, clear."""
    events, delta = list(runs(FLOOD)), Delta()
    index, other = radix_index(1, 4, core), radix_index(1, 4, core)
    index.add(0)
    other.add(0)
    late = [BlockRemoved(event.block_hashes) for event in reversed(events[len(events) // 2 :])]
    stored = per_page(lambda: each(events, lambda event: index.store(0, event, "", delta)), FLOOD)
    gone = sum(len(event.block_hashes) for event in late)
    removed = per_page(lambda: each(late, lambda event: index.remove(0, event, delta)), gone)
    held = FLOOD - gone
    dump = index.dump(0)
    restored = per_page(lambda: other.restore(0, dump), held)
    cleared = per_page(lambda: index.clear(0), held)
    print(f"  store {stored:.2f}, remove {removed:.2f}, restore {restored:.2f}, clear {cleared:.3f} us a page")


def payloads(core: Core) -> None:
    """Payloads of one store each, from their bytes into the index."""
    made = []
    for event in runs(FLOOD):
        ids = array("I", event.tokens).tolist()
        form: list[object] = ["BlockStored", event.block_hashes, event.parent, ids, 1, None, "GPU"]
        made.append(msgspec.msgpack.encode([1.0, [form], 0]))
    index = Index(core)
    index.add(WORKER, WorkerSpec("m", EngineKind.SGLANG))

    def apply() -> None:
        for payload in made:
            applied = index.apply_payload(WORKER, payload)
            if applied is None or applied.done < applied.events:
                index.apply(WORKER, decode(payload, EngineKind.SGLANG), applied=applied)

    print(f"  payload to index {per_page(apply, FLOOD):.2f} us a page")


def backwards(core: Core) -> None:
    """One event that removes a long sequence from its end, while nobody else, or another worker, holds it."""
    hashes: list[EngineHash] = list(range(1, LONG + 1))
    tokens = array("I", range(LONG)).tobytes()
    for others in (0, 1):
        index, delta = radix_index(1, 4, core), Delta()
        for slot in range(1 + others):
            index.add(slot)
            index.store(slot, BlockStored(hashes, None, tokens, 1), "", delta)
        event = BlockRemoved(hashes[::-1])
        seconds = per_page(lambda: index.remove(0, event, delta), 1_000_000)  # noqa: B023  called at once
        print(f"  remove {LONG:,} pages last to first, {others} other worker: {seconds:.2f} s")


def main() -> None:
    draw = random.Random(2)
    tokens = array("I", [draw.getrandbits(17) for _ in range(PROMPT)])
    for core in cores():
        print(f"{core.name}:")
        matches(core, tokens)
        flood(core)
        payloads(core)
        backwards(core)
    trie = Trie()
    trie.store(chunk(tokens, 0, PROMPT))
    print(f"match by a dict per token, 1 worker: {microseconds(lambda: walk(trie, tokens), 20):.1f} us")
    events = list(runs(FLOOD))
    print(f"store by a dict per token: {per_page(lambda: each(events, trie.store), FLOOD):.2f} us a page")


if __name__ == "__main__":
    main()
