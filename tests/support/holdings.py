"""Dumps as sets, so that holdings can be compared whatever order they came in."""

from __future__ import annotations

from collections import Counter

from index.dump import BlockDump, Dump, RadixDump
from index.request_key import split_keys

Holding = tuple[object, ...]


def holdings(dump: Dump | None) -> Counter[Holding]:
    """Every block or page held per medium with its meaning, as often as it is counted. What is parked is left out."""
    match dump:
        case None:
            return Counter()
        case BlockDump():
            return _blocks(dump)
        case RadixDump():
            return _pages(dump)


def _blocks(dump: BlockDump) -> Counter[Holding]:
    held: Counter[Holding] = Counter()
    for slot in dump.slots:
        named = [*zip(slot.hashes, split_keys(slot.keys), strict=True), *((block, b"") for block in slot.keyless)]
        for block, key in named:
            held[dump.block_size, slot.group, slot.medium, block, key] = slot.counts.get(block, 1)
    return held


def _pages(dump: RadixDump) -> Counter[Holding]:
    held: Counter[Holding] = Counter()
    for run in dump.runs:
        pages = [int.from_bytes(run.hashes[at : at + 8], "little", signed=True) for at in range(0, len(run.hashes), 8)]
        width = len(run.tokens) // len(pages)
        before: object = run.namespace if run.parent is None else run.parent
        for number, page in enumerate(pages):
            tokens = run.tokens[number * width : (number + 1) * width]
            held[dump.page_size, run.medium, before, page, tokens] = 1 + (
                dump.copies.get(page, 0) if run.medium == 0 else 0
            )
            before = page
    return held
