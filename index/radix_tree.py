"""The shape of the radix tree: growing, cutting, splitting and joining runs, with the page table kept in step.

Splitting and joining cost what the smaller side holds: it is the one whose node, and so whose entries in the page
table, change. But both copy a run's bytes, which are immutable, so that they can be compared fast. Changed page by page
a long run would be copied once for each page: it is halved first (`narrow`), and joined only up to `RUN_BYTES`.
"""

from __future__ import annotations

from array import array

from index.page_table import PageTable
from index.radix_node import NOBODY, Masks, Node, slots_of

NODE_BYTES = 520  # a node's own objects: headers, slots, dict of children, its key above
RUN_BYTES = 1 << 15  # of tokens; a longer run is made by one store, never by joining
HOLDING_BYTES = 56  # its place in one worker's set


class RadixTree:
    """Nodes, their roots by namespace, and per slot the nodes it holds.

    `page_count` and `node_count` leave the roots out. Callers change a node's masks with `set_masks` and call `settle`
    afterwards, which takes out what nobody needs and joins what need not be apart.
    """

    def __init__(self, page_bytes: int, run_bytes: int = RUN_BYTES) -> None:
        self.page_bytes = page_bytes
        self.run_bytes = run_bytes
        self.roots: dict[str, Node] = {}
        self.holdings: dict[int, set[Node]] = {}
        self.page_count = 0
        self.node_count = 0
        self._nodes: list[Node] = [_nowhere()]
        self._free: list[int] = []
        self._sweeping: list[Node] | None = None  # nodes taken out whose table entries go together
        self.table = PageTable(self._nodes)

    @property
    def size_bytes(self) -> int:
        """Our own memory, estimated; 0 when nothing is held."""
        holdings = sum(map(len, self.holdings.values()))
        pages = self.page_count * (self.page_bytes + 8)
        nodes = (self.node_count + len(self.roots)) * NODE_BYTES
        return pages + nodes + holdings * HOLDING_BYTES + self.table.size_bytes

    def root(self, namespace: str) -> Node:
        """The root of a namespace, made when it is not there."""
        root = self.roots.get(namespace)
        if root is None:
            root = self.roots[namespace] = _nowhere()
            root.namespace = namespace
        return root

    def grow(self, node: Node, tokens: bytes, hashes: array[int]) -> tuple[Node, list[int]]:
        """Hang a new leaf, held by nobody, below `node`; answers it and the indices of pages the table did not take."""
        leaf = self._new(node, node.start + len(node.hashes), tokens, hashes, NOBODY)
        self.page_count += len(hashes)
        return leaf, self.table.insert(leaf, 0, len(hashes))

    def extend(self, leaf: Node, tokens: bytes, hashes: array[int]) -> list[int]:
        """Lengthen a leaf in place; answers as `grow`."""
        first = len(leaf.hashes)
        leaf.tokens += tokens
        leaf.hashes = leaf.hashes + hashes  # not in place: a new array has no spare room
        self.page_count += len(hashes)
        return self.table.insert(leaf, first, len(leaf.hashes))

    def cut(self, leaf: Node, at: int) -> None:
        """Take the pages from index `at` on off a leaf; some must stay."""
        assert 0 < at < len(leaf.hashes)
        self.table.discard(leaf, at)
        self.page_count -= len(leaf.hashes) - at
        leaf.tokens = leaf.tokens[: at * self.page_bytes]
        leaf.hashes = leaf.hashes[:at]

    def takes(self, node: Node, token_bytes: int) -> bool:
        """Whether a node may be made longer by so many bytes of tokens."""
        return len(node.tokens) + token_bytes <= self.run_bytes

    def narrow(self, node: Node, first: int, last: int) -> tuple[Node, int]:
        """Halve an overlong node around its pages `first` to `last`; answers where these begin now."""
        while len(node.tokens) > self.run_bytes:
            middle = len(node.hashes) // 2
            if first < middle < last or middle == 0:
                break
            node, tail = self.split(node, middle)
            if first >= middle:
                node, first, last = tail, first - middle, last - middle
        return node, first

    def set_masks(self, node: Node, masks: Masks) -> None:
        """Say who holds the node, in every medium."""
        before = node.held
        node.masks = masks
        after = node.held
        for slot in slots_of(after & ~before):
            self.holdings[slot].add(node)
        for slot in slots_of(before & ~after):
            self.holdings[slot].discard(node)

    def split(self, node: Node, at: int) -> tuple[Node, Node]:
        """Cut a node in two before page `at`, both with its holders; one of the two is the same object."""
        cut = at * self.page_bytes
        tokens, hashes, parent = node.tokens, node.hashes, node.parent
        assert parent is not None
        assert 0 < at < len(hashes)
        if at <= len(hashes) - at + len(node.children):
            head = self._new(parent, node.start, tokens[:cut], hashes[:at], node.masks)
            node.parent, node.start, node.tokens, node.hashes = head, node.start + at, tokens[cut:], hashes[at:]
            head.children[self._key(node)] = node
            self.table.move(head.hashes, head.start, node.id, head.id)
            return head, node
        children, node.children = node.children, {}
        node.tokens, node.hashes = tokens[:cut], hashes[:at]
        tail = self._new(node, node.start + at, tokens[cut:], hashes[at:], node.masks)
        _adopt(tail, children)
        self.table.move(tail.hashes, tail.start, node.id, tail.id)
        return node, tail

    def settle(self, node: Node) -> None:
        """After a change at `node`: take out runs nobody holds and nothing hangs on, join those with equal holders."""
        while node.parent is not None and not node.children and not node.held:
            parent = node.parent
            self._remove(node)
            node = parent
        if node.parent is None:
            if node.namespace is not None and not node.children:
                self.roots.pop(node.namespace, None)
            return
        while len(node.children) == 1:  # more than once only after a change at many nodes
            (child,) = node.children.values()
            if child.masks != node.masks or not self.takes(node, len(child.tokens)):
                break
            node = self._join(node, child)
        if not node.held and not node.children:  # runs that the same clear emptied
            self.settle(node)
            return
        while (above := self._like_above(node)) is not None:
            node = self._join(above, node)

    def settle_all(self, nodes: list[Node]) -> None:
        """`settle` after a change at many nodes; what goes leaves the page table at once."""
        swept: list[Node] = []
        self._sweeping = swept
        for node in nodes:
            self.settle(node)
        self._sweeping = None
        self.table.discard_nodes(swept)
        for node in swept:
            self._forget(node)

    def _like_above(self, node: Node) -> Node | None:
        """The node above, if the two can be one."""
        above = node.parent
        assert above is not None
        one = above.parent is not None and len(above.children) == 1 and above.masks == node.masks
        return above if one and self.takes(above, len(node.tokens)) else None

    def _join(self, upper: Node, lower: Node) -> Node:
        """Make one node of two with the same holders; answers the one that stays."""
        if len(upper.hashes) <= len(lower.hashes) + len(lower.children):
            stays, goes = lower, upper
            self.table.move(upper.hashes, upper.start, upper.id, lower.id)
            lower.start, lower.parent = upper.start, upper.parent
            assert upper.parent is not None
            upper.parent.children[self._key(upper)] = lower
        else:
            stays, goes = upper, lower
            self.table.move(lower.hashes, lower.start, lower.id, upper.id)
            _adopt(upper, lower.children)
        tokens, hashes = upper.tokens + lower.tokens, upper.hashes + lower.hashes
        stays.tokens, stays.hashes = tokens, hashes
        self._forget(goes)
        return stays

    def _new(self, parent: Node, start: int, tokens: bytes, hashes: array[int], masks: Masks) -> Node:
        node = Node(parent, start, tokens, hashes, masks)
        parent.children[self._key(node)] = node
        if self._free:
            node.id = self._free.pop()
            self._nodes[node.id] = node
        else:
            node.id = len(self._nodes)
            self._nodes.append(node)
        self.node_count += 1
        for slot in slots_of(node.held):
            self.holdings[slot].add(node)
        return node

    def _remove(self, leaf: Node) -> None:
        assert leaf.parent is not None
        assert not leaf.children
        del leaf.parent.children[self._key(leaf)]
        leaf.parent = None
        self.page_count -= len(leaf.hashes)
        if self._sweeping is not None:
            self._sweeping.append(leaf)
            return
        self.table.discard(leaf, 0)
        self._forget(leaf)

    def _forget(self, node: Node) -> None:
        """Free a node that no entry of the table names any more."""
        for slot in slots_of(node.held):
            self.holdings[slot].discard(node)
        node.parent, node.children = None, {}
        self._nodes[node.id] = self._nodes[0]
        self._free.append(node.id)
        self.node_count -= 1
        if not self.node_count:
            del self._nodes[1:]
            self._free.clear()

    def _key(self, node: Node) -> bytes:
        return node.tokens[: self.page_bytes]


def _nowhere() -> Node:
    return Node(None, 0, b"", array("q"), NOBODY)


def _adopt(parent: Node, children: dict[bytes, Node]) -> None:
    parent.children = children
    for child in children.values():
        child.parent = parent
