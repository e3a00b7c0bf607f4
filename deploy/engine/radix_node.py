"""One node of the radix tree: a run of pages, where their KV lies, and what the eviction policies ask of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from deploy.engine.cache import Namespace
from deploy.engine.slot_vectors import SlotVector


@dataclass(eq=False, slots=True)
class RadixNode:
    """A run of units after `parent`'s (SGLang `TreeNode`). A namespace's root has no parent and no units.

    `key` is the run's units as bytes (4 a token, 8 a bigram), whole pages; `value` has one slot index per unit.
    `digests` are the pages' hashes. `lock_ref` counts the running requests whose path leads through the node.
    """

    parent: RadixNode | None
    namespace: Namespace
    key: bytes
    value: SlotVector
    created: int
    last_access: int
    hit_count: int = 0
    lock_ref: int = 0
    children: dict[bytes, RadixNode] = field(default_factory=dict)
    digests: list[bytes] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.value)

    def __bool__(self) -> bool:
        return True

    @property
    def is_root(self) -> bool:
        return self.parent is None


def shared_bytes(key: bytes, other: bytes, start: int, page_bytes: int) -> int:
    """How many bytes, in whole pages, `other` shares from `start` on with all of `key` (itself whole pages)."""
    if other.startswith(key, start):
        return len(key)
    low, high = 0, len(key) // page_bytes  # the first `low` pages agree, the first `high` do not
    while high - low > 1:
        middle = (low + high) // 2
        if other.startswith(key[low * page_bytes : middle * page_bytes], start + low * page_bytes):
            low = middle
        else:
            high = middle
    return low * page_bytes
