"""Page handle -> place in the radix tree, in 15 to 27, on average 20 bytes a page.

Open addressing over one 64-bit entry a slot: node id above, page depth below. The handle itself is not kept: a probe
looks it up in the node. Depth counts from the root, so cutting a node in two changes the entries of one half only.
The table is cut into segments that grow on their own, each by another factor, so that no insertion has to move much.
"""

from __future__ import annotations

from array import array

from index.radix_node import Node

SEGMENTS = 256
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
        self._segments = [_Segment(number) for number in range(SEGMENTS)]
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
                segment.room = room = segment.room - 1
                if not room:
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
                segment.deleted += 1
            else:
                slots[at] = EMPTY  # the end of its chain: no mark is needed
                segment.room += 1
            entry += 1
            if (segment.room + segment.deleted) * 5 > size * 2 and size > SMALLEST:
                self._resize(segment)
        self.live -= len(node.hashes) - first

    def discard_nodes(self, nodes: list[Node]) -> None:
        """Take out all pages of these nodes; many that are most of the table by building it anew without them."""
        count = sum(len(node.hashes) for node in nodes)
        if count * 2 < self.live or count < SEGMENTS:
            for node in nodes:
                self.discard(node, 0)
            return
        gone = {node.id for node in nodes}
        for segment in self._segments:
            self._rebuild(segment, [entry for entry in segment.slots if entry > DELETED and entry >> 32 not in gone])
        self.live -= count

    def _resize(self, segment: _Segment) -> None:
        self._rebuild(segment, [entry for entry in segment.slots if entry > DELETED])

    def _rebuild(self, segment: _Segment, entries: list[int]) -> None:
        """Build a segment anew at about 0.3 load; it is full at 0.55, and rebuilt too when less than 0.15 is left."""
        nodes = self._nodes
        segment.reset(max(SMALLEST, len(entries) * segment.growth // 64 | 1), len(entries))
        slots, size = segment.slots, segment.size
        for entry in entries:
            node = nodes[entry >> 32]
            at = node.hashes[(entry & DEPTH) - node.start] % size
            while slots[at]:
                at = at + 1 if at + 1 < size else 0
            slots[at] = entry


class _Segment:
    """Slots of a part of the handles: `room` empty ones that may still be filled, `deleted` marked ones."""

    __slots__ = ("deleted", "growth", "room", "size", "slots")

    def __init__(self, number: int) -> None:
        self.growth = 192 + number * 40 // SEGMENTS  # new size in 64ths of the entries: 3 to 3.6 times as many
        self.reset(SMALLEST, 0)

    def reset(self, size: int, live: int) -> None:
        """Begin with empty slots, for `live` entries that the caller puts in at once."""
        self.slots = array("Q", bytes(size * ENTRY_BYTES))
        self.size = size
        self.room = size * 11 // 20 - live
        self.deleted = 0
