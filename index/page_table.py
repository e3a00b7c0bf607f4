"""Page handle -> place in the radix tree, in about 16 bytes a page.

Open addressing over one 64-bit entry a slot: node id above, page depth below. The handle itself is not kept: a probe
looks it up in the node. Depth counts from the root, so cutting a node in two changes the entries of one half only.
The table is cut into segments that grow on their own, so that no single insertion moves more than a 64th of it.
"""

from __future__ import annotations

from array import array

from index.radix_node import Node

SEGMENTS = 64
SMALLEST = 7  # slots of an unused segment; sizes are odd, so that a segment's handles spread over it
EMPTY = 0
DELETED = 1  # node ids start at 1, so no entry is below 1 << 32
DEPTH = (1 << 32) - 1
ENTRY_BYTES = 8


class PageTable:
    """Finds pages by handle. `nodes[id]` must be the node an entry names as long as the entry is there."""

    __slots__ = ("_nodes", "_segments", "live")

    def __init__(self, nodes: list[Node]) -> None:
        self._nodes = nodes
        self._segments = [_Segment() for _ in range(SEGMENTS)]
        self.live = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of the slots; 0 for an empty table."""
        return sum(segment.size for segment in self._segments) * ENTRY_BYTES if self.live else 0

    def find(self, handle: int) -> tuple[Node, int] | None:
        """The node that holds the page of this handle, and the page's index in it."""
        segment = self._segments[handle % SEGMENTS]
        slots, size, nodes = segment.slots, segment.size, self._nodes
        at = handle % size
        while entry := slots[at]:
            if entry != DELETED:
                node = nodes[entry >> 32]
                index = (entry & DEPTH) - node.start
                if node.hashes[index] == handle:
                    return node, index
            at = at + 1 if at + 1 < size else 0
        return None

    def insert(self, node: Node, first: int, last: int) -> list[int]:
        """Enter the node's pages `first` to `last`; answers the indices left out, their handles being in use."""
        taken: list[int] = []
        segments, nodes = self._segments, self._nodes
        entry = (node.id << 32) + node.start + first
        for handle in node.hashes[first:last]:
            segment = segments[handle % SEGMENTS]
            slots, size = segment.slots, segment.size
            at = handle % size
            while other := slots[at]:
                if other != DELETED:
                    found = nodes[other >> 32]
                    if found.hashes[(other & DEPTH) - found.start] == handle:
                        taken.append((entry & DEPTH) - node.start)
                        break
                at = at + 1 if at + 1 < size else 0
            else:
                slots[at] = entry
                segment.live += 1
                segment.room -= 1
                if not segment.room:
                    self._resize(segment)
            entry += 1
        self.live += last - first - len(taken)
        return taken

    def move(self, hashes: array[int], depth: int, old: int, new: int) -> None:
        """Name node `new` in the entries of these pages, which begin at `depth` and belong to node `old`."""
        segments = self._segments
        entry, change = (old << 32) + depth, (new - old) << 32
        for handle in hashes:
            segment = segments[handle % SEGMENTS]
            slots, size = segment.slots, segment.size
            at = handle % size
            while slots[at] != entry:
                at = at + 1 if at + 1 < size else 0
            slots[at] = entry + change
            entry += 1

    def discard(self, node: Node, first: int) -> None:
        """Take out the node's pages from index `first` on; the node must still have them."""
        segments = self._segments
        entry = (node.id << 32) + node.start + first
        for handle in node.hashes[first:]:
            segment = segments[handle % SEGMENTS]
            slots, size = segment.slots, segment.size
            at = handle % size
            while slots[at] != entry:
                at = at + 1 if at + 1 < size else 0
            if slots[at + 1 if at + 1 < size else 0]:
                slots[at] = DELETED
            else:
                slots[at] = EMPTY  # the end of its chain: no mark is needed
                segment.room += 1
            segment.live -= 1
            entry += 1
            if segment.live * 5 < size and size > SMALLEST:
                self._resize(segment)
        self.live -= len(node.hashes) - first

    def _resize(self, segment: _Segment) -> None:
        """Rebuild a segment at 5/12 load: it then takes half as many pages again."""
        nodes, entries = self._nodes, [entry for entry in segment.slots if entry > DELETED]
        size = max(SMALLEST, len(entries) * 12 // 5 | 1)
        segment.slots = slots = array("Q", bytes(size * ENTRY_BYTES))
        segment.size = size
        segment.room = size * 5 // 8 - len(entries)
        for entry in entries:
            node = nodes[entry >> 32]
            at = node.hashes[(entry & DEPTH) - node.start] % size
            while slots[at]:
                at = at + 1 if at + 1 < size else 0
            slots[at] = entry


class _Segment:
    """Slots of a 64th of the handles: `live` entries, `room` empty slots that may still be filled."""

    __slots__ = ("live", "room", "size", "slots")

    def __init__(self) -> None:
        self.size = SMALLEST
        self.slots = array("Q", bytes(SMALLEST * ENTRY_BYTES))
        self.live = 0
        self.room = SMALLEST * 5 // 8
