"""An SGLang worker's holdings out of the radix index and into it again, and recorded stores done again."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

from index.delta import Delta
from index.dump import Operation, RadixDump, RunDump
from index.event import BlockStored
from index.parked_runs import Run
from index.radix_holdings import Holdings
from index.radix_node import Node
from index.worker import Medium

HANDLE_BYTES = 8


def dump_radix(holdings: Holdings, slot: int, page_size: int, *, bigrams: bool) -> RadixDump:
    """A worker's runs by depth, so that parents come before children; odd handles as the worker itself sends them."""
    holder = holdings.holders[slot]
    runs: list[RunDump] = []
    for node in sorted(holdings.tree.holdings[slot], key=lambda node: node.start):
        hashes = array("q", (_handle(holder.named, page) for page in node.hashes)) if holder.named else node.hashes
        above, namespace = _above(node, holder.named)
        packed = _little_endian(hashes)
        runs += [
            RunDump(int(medium), above, namespace, packed, bytes(node.tokens))
            for medium in Medium
            if node.masks[medium] >> slot & 1
        ]
    copies = {_handle(holder.named, page): count for page, count in holder.copies.items()}
    return RadixDump(page_size, bigrams, False, runs, copies, not len(holder.parked))


def restore_radix(holdings: Holdings, slot: int, dump: RadixDump) -> None:
    """Hold a dump's runs again. A run below one that nobody holds waits for it as an orphan does."""
    delta = Delta()
    for run in dump.runs:
        hashes = array("q")
        hashes.frombytes(run.hashes)
        if sys.byteorder == "big":
            hashes.byteswap()
        stored = Run(run.parent, hashes, run.tokens, Medium(run.medium))
        place = holdings.below(slot, run.parent, run.namespace)
        if place is None:
            holdings.holders[slot].parked.park(stored)
        else:
            holdings.store(slot, stored, place, delta)
    holdings.holders[slot].copies.update(dump.copies)


def is_closed(runs: list[RunDump]) -> bool:
    """Whether every run of a dump has its parent in it; one that has not would wait for it after a restore."""
    ends = {run.hashes[-HANDLE_BYTES:] for run in runs}
    return all(run.parent is None or run.parent.to_bytes(HANDLE_BYTES, "little", signed=True) in ends for run in runs)


def store_operation(event: BlockStored, namespace: str) -> Operation:
    """A store as it is recorded."""
    medium, size = int(event.medium), event.block_size
    return ("s", medium, event.parent, namespace, size, event.bigrams, event.block_hashes, event.tokens)


def stored_event(fields: Sequence[object]) -> tuple[BlockStored, str]:
    """The event and namespace of a recorded store. ValueError for anything else."""
    medium, parent, namespace, size, bigrams, hashes, tokens = fields
    match medium, parent, namespace, size, hashes, tokens:
        case int(), int() | bytes() | None, str(), int(), list(), bytes():
            return BlockStored(hashes, parent, tokens, size, Medium(medium), bigrams=bool(bigrams)), namespace
        case _:
            raise ValueError("not a recorded store")


def _above(node: Node, named: dict[int, list[int]]) -> tuple[int | None, str]:
    """The handle of the page before a run, or None and the namespace when it begins there."""
    parent = node.parent
    assert parent is not None
    if parent.parent is None:
        return None, parent.namespace or ""
    return _handle(named, parent.hashes[-1]), ""


def _handle(named: dict[int, list[int]], page: int) -> int:
    return named[page][0] if page in named else page


def _little_endian(hashes: array[int]) -> bytes:
    if sys.byteorder == "big":
        hashes = hashes[:]
        hashes.byteswap()
    return hashes.tobytes()
