"""The radix tree: token runs to slot indices, with locks and eviction of leaves. No slots are handed out here.

Mirrors sglang/srt/mem_cache/radix_cache.py (0.5.22). One tree per namespace; recency is a counter.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator
from itertools import count
from typing import NamedTuple

from deploy.engine.cache import Namespace
from deploy.engine.eviction_policy import EvictionPolicy
from deploy.engine.radix_node import RadixNode, shared_bytes
from deploy.engine.slot_vectors import MakeVector


class Inserted(NamedTuple):
    """What an insert found: `known` units were in the tree already; `leaf` holds the others, if there are any."""

    known: int
    leaf: RadixNode | None


class RadixTree:
    """Keys are units as bytes; what does not fill a page is cut off. Sizes are in units.

    `evictable_size` counts the units that no running request locks.
    """

    def __init__(self, unit_bytes: int, page_size: int, policy: EvictionPolicy, vector: MakeVector) -> None:
        self.unit_bytes = unit_bytes
        self.page_bytes = unit_bytes * page_size
        self._policy = policy
        self._vector = vector
        self._clock = count(1)
        self._roots: dict[Namespace, RadixNode] = {}
        self._leaves: set[RadixNode] = set()
        self.evictable_size = 0

    @property
    def namespaces(self) -> Collection[Namespace]:
        """Those that hold something."""
        return self._roots.keys()

    def whole_pages(self, key: bytes) -> bytes:
        """The key without its last, unfilled page."""
        return key[: len(key) // self.page_bytes * self.page_bytes]

    def peek(self, key: bytes, namespace: Namespace) -> int:
        """The length of the longest cached prefix. Changes nothing."""
        key = self.whole_pages(key)
        return sum(shared for _, shared in self._walk(key, namespace)) // self.unit_bytes

    def match(self, key: bytes, namespace: Namespace) -> RadixNode:
        """The node at which the longest cached prefix ends: a longer one is split there. Refreshes the path."""
        now = next(self._clock)
        key = self.whole_pages(key)
        end = self._roots.get(namespace) or self._root(namespace)
        for node, shared in self._walk(key, namespace):
            node.last_access = now
            end = node if shared == len(node.key) else self._split(node, shared)
        return end

    def insert(self, key: bytes, slots: list[int], namespace: Namespace, inserted: int) -> Inserted:
        """Add a prefix, its unit `i` at `slots[i]`. Known units keep their slots.

        Nodes within the first `inserted` units were counted as hit by this request before and are not again.
        """
        now = next(self._clock)
        key = self.whole_pages(key)
        if not key:
            return Inserted(0, None)
        end, known = self._roots.setdefault(namespace, self._root(namespace)), 0
        for node, shared in self._walk(key, namespace):
            node.last_access = now
            known += shared // self.unit_bytes
            end = node if shared == len(node.key) else self._split(node, shared)
            end.hit_count += known > inserted
        rest = key[known * self.unit_bytes :]
        if not rest:
            return Inserted(known, None)
        return Inserted(known, self._add_leaf(end, rest, slots[known : len(key) // self.unit_bytes], inserted))

    def slots(self, node: RadixNode) -> list[int]:
        """The slot indices of the whole path that ends at `node`."""
        runs = [step.value.tolist() for step in _path(node)]
        return [slot for run in reversed(runs) for slot in run]

    def lock(self, node: RadixNode) -> None:
        """Nothing on the path is evicted until it is unlocked as often as it was locked."""
        for step in _path(node):
            if step.lock_ref == 0:
                self.evictable_size -= len(step)
            step.lock_ref += 1
            self._update_leaf(step)

    def unlock(self, node: RadixNode) -> None:
        """Undo one `lock` of this path."""
        for step in _path(node):
            assert step.lock_ref > 0
            step.lock_ref -= 1
            if step.lock_ref == 0:
                self.evictable_size += len(step)
            self._update_leaf(step)

    def evict(self, units: int) -> Iterator[RadixNode]:
        """Take whole leaves out, by the policy, until `units` are gone or all that is left is locked.

        The caller must exhaust it before anything else happens to the tree.
        """
        heap = [self._rank(leaf) for leaf in self._leaves]
        heapq.heapify(heap)
        while units > 0 and heap:
            victim = heapq.heappop(heap)[2]
            parent = victim.parent
            assert parent is not None
            self._cut(victim, parent)
            units -= len(victim)
            if parent in self._leaves:
                heapq.heappush(heap, self._rank(parent))
            yield victim

    def clear(self) -> None:
        """Forget everything, locked or not."""
        self._roots.clear()
        self._leaves.clear()
        self.evictable_size = 0

    def _root(self, namespace: Namespace) -> RadixNode:
        return RadixNode(None, namespace, b"", self._vector([]), 0, 0)

    def _walk(self, key: bytes, namespace: Namespace) -> Iterator[tuple[RadixNode, int]]:
        """The nodes along a key and the bytes of each that it shares; all but the last are shared whole."""
        node, at = self._roots.get(namespace), 0
        while node is not None and at < len(key):
            node = node.children.get(key[at : at + self.page_bytes])
            if node is not None:
                size = len(node.key)
                shared = shared_bytes(node.key, key, at, self.page_bytes)
                yield node, shared
                if shared < size:
                    return
                at += shared

    def _add_leaf(self, parent: RadixNode, key: bytes, slots: list[int], inserted: int) -> RadixNode:
        now = next(self._clock)
        leaf = RadixNode(parent, parent.namespace, key, self._vector(slots), now, now)
        end = sum(len(step) for step in _path(leaf))
        leaf.hit_count = int(end > inserted)
        parent.children[key[: self.page_bytes]] = leaf
        self.evictable_size += len(leaf)
        self._update_leaf(parent)
        self._update_leaf(leaf)
        return leaf

    def _split(self, node: RadixNode, size: int) -> RadixNode:
        """Cut a node in two after `size` bytes; returns the new, upper one. `node` stays the lower one."""
        assert node.parent is not None
        now, slots, units = next(self._clock), node.value.tolist(), size // self.unit_bytes
        upper = RadixNode(
            node.parent,
            node.namespace,
            node.key[:size],
            self._vector(slots[:units]),
            created=now,
            last_access=now,
            hit_count=node.hit_count,
            lock_ref=node.lock_ref,
            children={node.key[size : size + self.page_bytes]: node},
            digests=node.digests[: size // self.page_bytes],
        )
        node.parent.children[node.key[: self.page_bytes]] = upper
        node.parent, node.key, node.value = upper, node.key[size:], self._vector(slots[units:])
        node.digests = node.digests[size // self.page_bytes :]
        return upper

    def _rank(self, leaf: RadixNode) -> tuple[tuple[int, int], int, RadixNode]:
        return (self._policy(leaf), leaf.created, leaf)

    def _cut(self, leaf: RadixNode, parent: RadixNode) -> None:
        del parent.children[leaf.key[: self.page_bytes]]
        self._leaves.discard(leaf)
        self.evictable_size -= len(leaf)
        self._update_leaf(parent)
        if parent.is_root and not parent.children:
            del self._roots[parent.namespace]

    def _update_leaf(self, node: RadixNode) -> None:
        if node.is_root or node.lock_ref or node.children:
            self._leaves.discard(node)
        else:
            self._leaves.add(node)


def _path(node: RadixNode) -> Iterator[RadixNode]:
    """The nodes from `node` up to its root, without that."""
    while node.parent is not None:
        yield node
        node = node.parent
