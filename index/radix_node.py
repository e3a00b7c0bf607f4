"""A node of the radix tree: one run of whole pages that the same workers hold."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TypeVar

Masks = tuple[int, int, int, int]
"""Holders per medium (gpu, cpu, disk, other): bit `slot` of each is one worker."""

NOBODY: Masks = (0, 0, 0, 0)


class Node:
    """Pages `start` to `start + len(hashes)` of every sequence that leads through here, counted from the root.

    `tokens` are the run's bytes, `hashes` its pages' handles in the page table, `children` are keyed by the bytes of
    their first page. A root has no pages, no parent, and the name of its namespace; a node taken out of the tree has
    neither parent nor namespace.
    """

    __slots__ = ("children", "hashes", "id", "masks", "namespace", "parent", "start", "tokens")

    def __init__(self, parent: Node | None, start: int, tokens: bytes, hashes: array[int], masks: Masks) -> None:
        self.id = 0
        self.parent = parent
        self.namespace: str | None = None
        self.start = start
        self.tokens = tokens
        self.hashes = hashes
        self.masks = masks
        self.children: dict[bytes, Node] = {}

    @property
    def held(self) -> int:
        """The workers that hold this run in any medium."""
        gpu, cpu, disk, other = self.masks
        return gpu | cpu | disk | other


def slots_of(mask: int) -> Iterator[int]:
    """The slots whose bit is set, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


Run = TypeVar("Run", bytes, "array[int]")


def shared_run(left: Run, right: Run, width: int) -> int:
    """How many leading pages of two sequences are equal; a page is `width` elements, parts do not count."""
    pages = min(len(left), len(right)) // width
    if left[: pages * width] == right[: pages * width]:
        return pages
    equal, differ = 0, pages  # the first `equal` pages are equal, the first `differ` are not
    while differ - equal > 1:
        middle = (equal + differ) // 2
        if left[equal * width : middle * width] == right[equal * width : middle * width]:
            equal = middle
        else:
            differ = middle
    return equal
