"""The page table: finds every page it has and no other, grows and shrinks with them, and gives all back."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.page_table import ENTRY_BYTES, SEGMENTS, SMALLEST, PageTable
from index.radix_node import NOBODY, Node

handles = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 200) | st.integers(0, 50).map(lambda n: n * SEGMENTS * 7)


class Pages:
    """Nodes without a tree, and the table of their pages."""

    def __init__(self) -> None:
        self.nodes = [Node(None, 0, b"", array("q"), NOBODY)]
        self.table = PageTable(self.nodes)

    def node(self, hashes: list[int], start: int = 0) -> Node:
        node = Node(None, start, b"", array("q", hashes), NOBODY)
        node.id = len(self.nodes)
        self.nodes.append(node)
        return node

    def add(self, hashes: list[int], start: int = 0) -> Node:
        node = self.node(hashes, start)
        assert self.table.insert(node, 0, len(hashes)) == []
        return node


@given(st.lists(st.lists(handles, min_size=1, max_size=40), max_size=12), st.data())
def test_it_finds_what_was_entered_and_not_taken_out(runs: list[list[int]], data: st.DataObject) -> None:
    pages = Pages()
    expected: dict[int, tuple[Node, int]] = {}
    for number, run in enumerate(runs):
        hashes = [handle for handle in dict.fromkeys(run) if handle not in expected]
        if hashes:
            node = pages.add(hashes, start=number * 1000)
            expected |= {handle: (node, index) for index, handle in enumerate(hashes)}
        remove: bool = data.draw(st.booleans())
        if expected and remove:
            node = data.draw(st.sampled_from(list(dict.fromkeys(node for node, _ in expected.values()))))
            first = data.draw(st.integers(0, len(node.hashes) - 1))
            pages.table.discard(node, first)
            for handle in node.hashes[first:]:
                del expected[handle]
            node.hashes = node.hashes[:first]
    for handle in [handle for run in runs for handle in run] + [-1, 0, 63, 64]:
        assert pages.table.find(handle) == expected.get(handle)
    assert pages.table.live == len(expected)


def test_a_handle_in_use_is_left_out_and_named() -> None:
    pages = Pages()
    first = pages.add([10, 20, 30])
    second = pages.node([5, 20, 7])
    assert pages.table.insert(second, 0, 3) == [1]
    assert pages.table.find(20) == (first, 1)
    assert pages.table.find(7) == (second, 2)
    assert pages.table.live == 5


def test_a_handle_behind_a_removed_one_is_still_in_use() -> None:
    pages = Pages()
    near, far = SEGMENTS * SMALLEST, SEGMENTS * SMALLEST * 2  # of one segment, and both first looked for in one slot
    gone = pages.add([near])
    stays = pages.add([far])
    pages.table.discard(gone, 0)
    assert pages.table.insert(pages.node([far]), 0, 1) == [0]
    assert pages.table.find(far) == (stays, 0)


def test_moved_pages_are_found_in_their_new_node_at_the_same_depth() -> None:
    pages = Pages()
    whole = pages.add([1, 2, 3, 4, 5], start=10)
    tail = pages.node([4, 5], start=13)
    pages.table.move(tail.hashes, tail.start, whole.id, tail.id)
    whole.hashes = whole.hashes[:3]
    assert [pages.table.find(handle) for handle in (3, 4, 5)] == [(whole, 2), (tail, 0), (tail, 1)]


@pytest.mark.parametrize("count", [20_000, 60_000])
def test_it_takes_under_25_bytes_a_page_and_none_when_empty(count: int) -> None:
    pages = Pages()
    node = pages.add([handle * 0x9E3779B97F4A7C15 % 2**64 - 2**63 for handle in range(count)])
    assert ENTRY_BYTES * count < pages.table.size_bytes < 25 * count
    pages.table.discard(node, count // 10)
    assert pages.table.size_bytes < 80 * (count // 10)
    node.hashes = node.hashes[: count // 10]
    assert pages.table.find(node.hashes[7]) == (node, 7)
    pages.table.discard(node, 0)
    assert (pages.table.live, pages.table.size_bytes) == (0, 0)


@pytest.mark.parametrize("kept", [0, 10, 5000])
def test_many_nodes_go_at_once(kept: int) -> None:
    pages = Pages()
    stays = pages.add(list(range(-kept, 0)))
    goes = [pages.add(list(range(start, start + 100))) for start in range(0, 1000, 100)]
    pages.table.discard_nodes(goes)
    assert pages.table.live == kept
    assert [pages.table.find(handle) for handle in stays.hashes] == [(stays, index) for index in range(kept)]
    assert not any(pages.table.find(handle) for node in goes for handle in node.hashes)


def test_churn_does_not_make_it_grow() -> None:
    """An engine at its capacity removes and stores all the time: the marks of removed pages must not pile up."""
    pages = Pages()
    node = pages.add(list(range(2000)))
    size = pages.table.size_bytes
    for turn in range(1, 40):
        pages.table.discard(node, 0)
        node.hashes = array("q", range(turn * 2000, turn * 2000 + 2000))
        pages.table.insert(node, 0, 2000)
    assert pages.table.size_bytes < size * 3


def test_taking_out_few_nodes_builds_nothing_anew() -> None:
    pages = Pages()
    node, other = pages.add([1, 2, 3]), pages.add([4])
    before = [segment.slots for segment in pages.table._segments]
    for gone in ([], [node], [], [other]):
        pages.table.discard_nodes(gone)
    assert all(one.slots is slots for one, slots in zip(pages.table._segments, before, strict=True))
    assert (pages.table.live, pages.table.size_bytes) == (0, 0)
    assert pages.table.find(1) is pages.table.find(4) is None
