"""Memory of the radix index at page size 1 (one hash per token): `python -m benchmarks.radix_memory [tokens]`.

Prints bytes per token by tracemalloc and by our own estimate, beside a trie with a dict per token and a dict of hashes.
"""

from __future__ import annotations

import gc
import random
import sys
import tracemalloc
from array import array
from collections.abc import Iterator
from typing import Any

from index.delta import Delta
from index.event import BlockStored, EngineHash
from index.radix import RadixIndex


def runs(tokens: int, seed: int = 1) -> Iterator[BlockStored]:
    """Runs of 100 to 2,000 tokens: half of them roots, half continue the middle or the end of an earlier one."""
    draw = random.Random(seed)
    anchors: list[int] = []
    while tokens > 0:
        count = min(tokens, draw.randint(100, 2000))
        hashes = [draw.getrandbits(64) - 2**63 for _ in range(count)]
        ids = array("I", [draw.getrandbits(17) for _ in range(count)]).tobytes()
        parent = draw.choice(anchors) if anchors and draw.random() < 0.5 else None
        anchors.append(draw.choice([hashes[-1], hashes[count // 2]]))
        yield BlockStored(list(hashes), parent, ids, 1)
        tokens -= count


class Trie:
    """The simple reference: one dict per token, and a dict from hash to node."""

    def __init__(self) -> None:
        self.root: dict[int, Any] = {}
        self.by_hash: dict[EngineHash, dict[int, Any]] = {}

    def store(self, event: BlockStored) -> None:
        node = self.root if event.parent is None else self.by_hash[event.parent]
        for block, token in zip(event.block_hashes, array("I", event.tokens), strict=True):
            node = node.setdefault(token, {-1: 0})
            node[-1] |= 1
            self.by_hash[block] = node


def held_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def main() -> None:
    tokens = int(sys.argv[1]) if len(sys.argv) > 1 else 500_000
    tracemalloc.start()
    before = held_bytes()
    index, delta = RadixIndex(1, 4), Delta()
    index.add(0)
    for event in runs(tokens):
        index.store(0, event, "", delta)
    del event
    used = held_bytes() - before
    print(f"radix index: {tokens} tokens in {index.node_count} runs, {used / tokens:.1f} bytes per token")
    print(f"  own estimate {index.size_bytes / tokens:.1f}, page table {index.table_bytes / tokens:.1f} of it")
    index.clear(0)
    print(f"  after a clear: {held_bytes() - before} bytes, own estimate {index.size_bytes}")
    sample = min(tokens, 100_000)
    before = held_bytes()
    trie = Trie()
    for event in runs(sample):
        trie.store(event)
    del event
    simple = (held_bytes() - before) / sample
    print(f"dict per token: {simple:.1f} bytes per token, {simple / (used / tokens):.1f} times as much")


if __name__ == "__main__":
    main()
