"""Speed of the radix index: `python -m benchmarks.radix_match`.

Prints microseconds per match of an 8,192-token prompt at page size 1, and per store and removal of a page, beside a
trie with a dict per token.
"""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Callable

from benchmarks.radix_memory import Trie, runs
from index.delta import Delta
from index.event import BlockRemoved, BlockStored
from index.radix import RadixIndex

PROMPT = 8192
FLOOD = 200_000


def microseconds(call: Callable[[], object], times: int) -> float:
    """The best of five rounds, per call."""
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(times):
            call()
        best = min(best, time.perf_counter() - start)
    return best / times * 1e6


def chunk(tokens: array[int], start: int, stop: int) -> BlockStored:
    return BlockStored(list(range(start + 1, stop + 1)), start or None, tokens[start:stop].tobytes(), 1)


def fleet(tokens: array[int], workers: int) -> RadixIndex:
    """Workers that hold prefixes of different lengths, so that the path is cut into a run per length."""
    index, delta = RadixIndex(1, 4), Delta()
    for slot in range(workers):
        index.add(slot)
        index.store(slot, chunk(tokens, 0, PROMPT * (slot + 1) // workers), "", delta)
    return index


def walk(trie: Trie, tokens: array[int]) -> int:
    node, depth = trie.root, 0
    for token in tokens:
        if token not in node:
            break
        node, depth = node[token], depth + 1
    return depth


def main() -> None:
    draw = random.Random(2)
    tokens = array("I", [draw.getrandbits(17) for _ in range(PROMPT)])
    prompt = tokens.tobytes()
    trie = Trie()
    trie.store(chunk(tokens, 0, PROMPT))
    simple = microseconds(lambda: walk(trie, tokens), 20)
    for workers in (1, 8, 64, 256):
        index = fleet(tokens, workers)
        everyone = (1 << workers) - 1
        spent = microseconds(lambda: index.match(prompt, [""], everyone), 200)  # noqa: B023  called at once
        print(f"match 8,192 tokens, {workers:3} workers in {index.node_count:3} runs: {spent:6.1f} us")
    print(f"match by a dict per token, 1 worker: {simple:.1f} us")
    flood()


def flood() -> None:
    """Store and remove many runs, then clear."""
    events = list(runs(FLOOD))
    index, delta, trie = RadixIndex(1, 4), Delta(), Trie()
    index.add(0)
    start = time.perf_counter()
    longest = 0.0
    for event in events:
        before = time.perf_counter()
        index.store(0, event, "", delta)
        longest = max(longest, time.perf_counter() - before)
    stored = time.perf_counter()
    for event in events:
        trie.store(event)
    simple = time.perf_counter()
    print(f"store: {(stored - start) / FLOOD * 1e6:.2f} us a page, the longest event {longest * 1e3:.1f} ms")
    print(f"store by a dict per token: {(simple - stored) / FLOOD * 1e6:.2f} us a page")
    start = time.perf_counter()
    for event in reversed(events[len(events) // 2 :]):
        index.remove(0, BlockRemoved(event.block_hashes), delta)
    removed = time.perf_counter()
    print(f"remove: {(removed - start) / delta.removed * 1e6:.2f} us a page")
    held = index.clear(0)
    print(f"clear: {(time.perf_counter() - removed) / held * 1e6:.2f} us a page")


if __name__ == "__main__":
    main()
