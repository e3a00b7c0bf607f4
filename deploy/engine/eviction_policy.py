"""In which order the radix tree's leaves go: the six policies of sglang/srt/mem_cache/evict_policy.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from deploy.engine.radix_node import RadixNode

EvictionPolicy = Callable[[RadixNode], tuple[int, int]]
"""A node's priority; the smallest goes first."""

PROTECTED_HITS: Final = 2
"""From how many inserts on SLRU takes a node for proven (`protected_threshold`)."""


def least_recently_used(node: RadixNode) -> tuple[int, int]:
    return (node.last_access, 0)


def least_frequently_used(node: RadixNode) -> tuple[int, int]:
    return (node.hit_count, node.last_access)


def first_in(node: RadixNode) -> tuple[int, int]:
    return (node.created, 0)


def most_recently_used(node: RadixNode) -> tuple[int, int]:
    return (-node.last_access, 0)


def last_in(node: RadixNode) -> tuple[int, int]:
    return (-node.created, 0)


def segmented(node: RadixNode) -> tuple[int, int]:
    return (int(node.hit_count >= PROTECTED_HITS), node.last_access)


POLICIES: Final[dict[str, EvictionPolicy]] = {
    "lru": least_recently_used,
    "lfu": least_frequently_used,
    "fifo": first_in,
    "mru": most_recently_used,
    "filo": last_in,
    "slru": segmented,
}
"""By the values of SGLang's `--radix-eviction-policy` (which offers some of them)."""
