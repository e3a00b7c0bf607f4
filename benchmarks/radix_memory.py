"""Memory of the radix index at page size 1 (one hash per token): `python -m benchmarks.radix_memory [tokens]`.

Prints bytes per token of the process (RSS) for both cores and for a trie with a dict per token, each in a process of
its own, beside each core's own estimate; and what is left after everything was removed.
"""

from __future__ import annotations

import multiprocessing
import random
import sys
from array import array
from collections.abc import Iterator
from typing import Any

from benchmarks.readings import resident
from index.delta import Delta
from index.event import BlockRemoved, BlockStored, EngineHash
from index.native import Core, chosen
from index.radix_native import radix_index


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


def cores() -> list[Core]:
    """The cores that there are: Python, and native where it was built."""
    return [chosen("python")] + ([chosen("native")] if chosen("auto").module else [])


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


def of_core(name: str, tokens: int) -> None:
    """Fill an index, then empty it: once by a clear, once event by event."""
    core, delta = chosen(name), Delta()
    index = radix_index(1, 4, core)
    index.add(0)
    empty = resident()
    for event in runs(tokens):
        index.store(0, event, "", delta)
    del event
    used = resident() - empty
    print(f"{name}: {tokens} tokens in {index.node_count} runs, {used / tokens:.1f} bytes of RSS per token")
    print(f"  own estimate {index.size_bytes / tokens:.1f}, page table {index.table_bytes / tokens:.1f} of it")
    index.clear(0)
    print(f"  after a clear: {resident() / empty:.2f} times the empty process, own estimate {index.size_bytes}")
    for event in runs(tokens):
        index.store(0, event, "", delta)
    for event in runs(tokens):
        index.remove(0, BlockRemoved(event.block_hashes[::-1]), delta)
    del event
    print(f"  after as many removals: {resident() / empty:.2f} times, own estimate {index.size_bytes}")


def of_trie(tokens: int) -> None:
    trie, empty = Trie(), resident()
    for event in runs(tokens):
        trie.store(event)
    del event
    print(f"dict per token: {(resident() - empty) / tokens:.1f} bytes of RSS per token")


def main() -> None:
    tokens = int(sys.argv[1]) if len(sys.argv) > 1 else 500_000
    fresh = multiprocessing.get_context("spawn")
    work = [fresh.Process(target=of_core, args=(core.name, tokens)) for core in cores()]
    for process in [*work, fresh.Process(target=of_trie, args=(min(tokens, 200_000),))]:
        process.start()
        process.join()
        if process.exitcode:
            sys.exit(process.exitcode)


if __name__ == "__main__":
    main()
