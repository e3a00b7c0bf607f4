"""The radix index: each promise by example, and all of them against a brute-force model over random histories."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from hashlib import blake2b
from sys import getsizeof

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from index.delta import Delta
from index.event import BlockRemoved, BlockStored, EngineHash
from index.radix import RadixIndex
from index.radix_match import Held
from index.radix_native import AnyRadixIndex, NativeRadixIndex
from index.radix_node import Node
from index.radix_tree import RUN_BYTES
from index.worker import Medium
from tests.support.cores import RADIX_CORES, RadixCore, native_radix, need_native
from tests.support.radix_model import ModelWorker, RadixModel

SLOTS = (0, 1, 5)
ALL = sum(1 << slot for slot in SLOTS)
GPU, CPU, DISK, OTHER = Medium


def ids(*tokens: int) -> bytes:
    return array("I", tokens).tobytes()


class Pool:
    """A radix index of plain tokens with page size 1 unless said otherwise, spoken to in short words."""

    def __init__(self, core: RadixCore, page_size: int = 1) -> None:
        self.index = core(page_size, 4)
        self.delta = Delta()
        for slot in SLOTS:
            self.index.add(slot)

    def store(
        self,
        slot: int,
        hashes: list[EngineHash],
        tokens: bytes,
        parent: EngineHash | None = None,
        medium: Medium = GPU,
        namespace: str = "",
    ) -> None:
        event = BlockStored(hashes, parent, tokens, self.index.page_size, medium)
        self.index.store(slot, event, namespace, self.delta)
        check_tree(self.index)

    def remove(self, slot: int, hashes: list[EngineHash], medium: Medium = GPU) -> None:
        self.index.remove(slot, BlockRemoved(hashes, medium), self.delta)
        check_tree(self.index)

    def matched(self, tokens: bytes, namespace: str = "") -> dict[int, int]:
        return {held.slot: held.units for held in self.index.match(tokens, [namespace], ALL)}


@pytest.fixture(params=RADIX_CORES)
def pool(request: pytest.FixtureRequest) -> Pool:
    return Pool(request.param)


def test_workers_stop_where_they_lack_a_page(pool: Pool) -> None:
    pool.store(0, [1, 2, 3, 4], ids(7, 8, 9, 10))
    pool.store(1, [1, 2], ids(7, 8))
    pool.store(5, [1, 2, 13], ids(7, 8, 99))
    assert pool.matched(ids(7, 8, 9, 10, 11)) == {0: 4, 1: 2, 5: 2}
    assert pool.matched(ids(7, 8, 99)) == {0: 2, 1: 2, 5: 3}
    assert pool.matched(ids(8, 9)) == {}
    assert [held.slot for held in pool.index.match(ids(7, 8), [""], 1 << 5)] == [5]


@pytest.mark.parametrize("core", RADIX_CORES)
def test_a_partial_page_does_not_count(core: RadixCore) -> None:
    pool = Pool(core, page_size=4)
    pool.store(0, [1, 2], ids(*range(8)))
    assert pool.matched(ids(*range(7))) == {0: 4}
    assert pool.matched(ids(0, 1, 2)) == {}
    assert pool.matched(ids(0, 1, 2, 3, 4, 5, 6, 99)) == {0: 4}


def test_gpu_stores_are_counted_because_the_default_format_hides_adapters(pool: Pool) -> None:
    pool.store(0, [77], ids(1))
    pool.store(0, [77], ids(1))
    pool.remove(0, [77])
    assert pool.matched(ids(1, 2)) == {0: 1}
    assert (pool.delta.stored, pool.delta.removed) == (1, 0)
    pool.remove(0, [77])
    assert pool.matched(ids(1, 2)) == {}
    pool.remove(0, [77])
    assert (pool.delta.removed, pool.index.size_bytes) == (1, 0)


def test_a_removal_takes_one_copy_of_each_page(pool: Pool) -> None:
    pool.store(0, [1, 2, 3], ids(1, 2, 3))
    pool.store(0, [2], ids(2), parent=1)
    pool.remove(0, [1, 2, 3])
    assert pool.index.pages(0) == (1, 0, 0, 0)
    pool.remove(0, [2])
    assert pool.index.size_bytes == 0


@pytest.mark.parametrize("medium", [CPU, DISK, OTHER])
def test_other_tiers_are_sets(pool: Pool, medium: Medium) -> None:
    pool.store(0, [1, 2], ids(1, 2), medium=medium)
    pool.store(0, [1, 2], ids(1, 2), medium=medium)
    pool.remove(0, [2, 1], medium)
    assert pool.index.size_bytes == 0


def test_each_token_counts_at_its_fastest_tier(pool: Pool) -> None:
    pool.store(0, [1, 2, 3], ids(1, 2, 3), medium=CPU)
    pool.store(0, [1], ids(1))
    pool.store(0, [4], ids(4), parent=3, medium=OTHER)
    pool.store(0, [5], ids(5), parent=4, medium=DISK)
    pool.store(0, [5], ids(5), parent=4, medium=OTHER)
    assert pool.index.match(ids(1, 2, 3, 4, 5), [""], ALL) == [Held(0, 5, (1, 2, 1, 1))]
    pool.remove(0, [1])
    assert pool.index.match(ids(1, 2, 3), [""], ALL) == [Held(0, 3, (0, 3, 0, 0))]
    assert pool.index.pages(0) == (0, 3, 1, 2)


def test_a_run_continues_a_parent_in_the_middle_of_another(pool: Pool) -> None:
    pool.store(0, [1, 2, 3, 4], ids(1, 2, 3, 4))
    pool.store(0, [5, 6], ids(5, 6), parent=2)
    assert pool.matched(ids(1, 2, 5, 6)) == {0: 4}
    assert pool.matched(ids(1, 2, 3, 4)) == {0: 4}
    assert pool.index.node_count == 3


def test_a_parent_may_lie_with_another_worker_or_in_another_tier(pool: Pool) -> None:
    pool.store(0, [1], ids(1), medium=CPU)
    pool.store(0, [2], ids(2), parent=1)
    pool.store(1, [3], ids(3), parent=2)
    assert pool.matched(ids(1, 2, 3)) == {0: 2}
    pool.store(1, [1, 2], ids(1, 2))
    assert pool.matched(ids(1, 2, 3)) == {0: 2, 1: 3}


def test_a_page_evicted_in_the_middle_ends_the_match_until_it_is_back(pool: Pool) -> None:
    pool.store(0, [1, 2, 3], ids(1, 2, 3))
    pool.remove(0, [2])
    assert pool.matched(ids(1, 2, 3)) == {0: 1}
    pool.store(0, [2], ids(2), parent=1)
    assert pool.matched(ids(1, 2, 3)) == {0: 3}
    assert pool.index.node_count == 1


def test_a_page_with_others_below_it_may_go_and_come_back(pool: Pool) -> None:
    pool.store(0, [1, 2, 3, 4], ids(1, 2, 3, 4))
    pool.store(0, [9], ids(9), parent=3)
    pool.remove(0, [3])
    assert pool.matched(ids(1, 2, 3, 4)) == {0: 2}
    pool.store(1, [1, 2, 3, 4], ids(1, 2, 3, 4))
    pool.store(0, [3], ids(3), parent=2)
    assert pool.matched(ids(1, 2, 3, 4)) == {0: 4, 1: 4}
    assert pool.matched(ids(1, 2, 3, 9)) == {0: 4, 1: 3}


def test_chunks_of_one_worker_become_one_run(pool: Pool) -> None:
    for start in range(0, 400, 40):
        tokens = range(start, start + 40)
        pool.store(0, list(tokens), ids(*tokens), parent=start - 1 if start else None)
    assert (pool.index.node_count, pool.index.page_count) == (1, 400)


def test_what_one_worker_cut_into_pieces_is_one_run_again_when_it_is_cleared(pool: Pool) -> None:
    """In eight namespaces, because the order in which the pieces are looked at is not certain."""
    for number in range(8):
        first, name = number * 100, str(number)
        pool.store(1, list(range(first, first + 18)), ids(*range(18)), namespace=name)
        pool.store(0, list(range(first, first + 12)), ids(*range(12)), namespace=name)
        pool.store(0, list(range(first + 12, first + 15)), ids(12, 13, 14), parent=first + 11, medium=CPU)
    assert pool.index.node_count == 8 * 3
    pool.index.clear(0)
    check_tree(pool.index)
    assert pool.index.node_count == 8


def test_namespaces_share_nothing(pool: Pool) -> None:
    pool.store(0, [1, 2], ids(1, 2), namespace="a")
    pool.store(1, [3, 4], ids(1, 2), namespace="b")
    pool.store(1, [5], ids(3), parent=4)
    assert pool.matched(ids(1, 2, 3), "a") == {0: 2}
    assert pool.matched(ids(1, 2, 3), "b") == {1: 3}
    assert pool.matched(ids(1, 2, 3), "") == {}
    both = pool.index.match(ids(1, 2, 3), ["a", "b", "c"], ALL)
    assert {held.slot: held.units for held in both} == {0: 2, 1: 3}


def test_one_hash_may_mean_different_pages_to_different_workers(pool: Pool) -> None:
    pool.store(0, [77], ids(1))
    pool.store(1, [77], ids(31))
    pool.store(0, [78], ids(2), parent=77)
    pool.store(1, [78], ids(32), parent=77)
    assert pool.matched(ids(1, 2)) == {0: 2}
    assert pool.matched(ids(31, 32)) == {1: 2}
    pool.remove(1, [77])
    assert pool.matched(ids(1, 2)) == {0: 2}
    assert pool.matched(ids(31, 32)) == {}


def test_a_worker_that_contradicted_the_others_is_not_attached_to_their_pages(pool: Pool) -> None:
    pool.store(0, [77, 78], ids(1, 2))
    pool.store(1, [77], ids(31))
    pool.remove(1, [77])
    pool.store(1, [80], ids(9), parent=78)
    assert pool.delta.orphans == 1
    pool.store(1, [1, 2, 78], ids(41, 42, 43))
    assert pool.matched(ids(41, 42, 43, 9)) == {1: 4}


def test_workers_may_name_the_same_page_differently(pool: Pool) -> None:
    pool.store(0, [1, 2], ids(1, 2))
    pool.store(1, [11, 12], ids(1, 2))
    pool.store(1, [13], ids(3), parent=12)
    pool.remove(0, [1, 2])
    assert pool.matched(ids(1, 2, 3)) == {1: 3}
    pool.remove(1, [13, 12, 11])
    assert pool.index.size_bytes == 0


def test_a_hash_used_again_for_other_tokens_gives_up_its_old_page(pool: Pool) -> None:
    pool.store(0, [1], ids(1))
    pool.store(0, [1], ids(2))
    assert pool.matched(ids(1)) == {}
    assert pool.matched(ids(2)) == {0: 1}
    pool.store(0, [1], ids(3))
    assert (pool.matched(ids(2)), pool.matched(ids(3))) == ({}, {0: 1})
    pool.remove(0, [1])
    assert pool.index.size_bytes == 0


def test_a_page_named_anew_by_the_same_event_is_kept(pool: Pool) -> None:
    pool.store(1, [5], ids(1))
    pool.store(0, [1], ids(1))
    pool.store(0, [5, 1], ids(1, 5))
    assert pool.matched(ids(1, 5)) == {0: 2, 1: 1}


def test_a_run_of_removed_hashes_is_read_as_this_worker_means_it(pool: Pool) -> None:
    pool.store(0, [1, 2], ids(7, 8))
    pool.store(1, [1], ids(7))
    pool.store(1, [4], ids(8), parent=1)
    pool.store(1, [2], ids(50))
    pool.remove(1, [1, 2])
    pool.store(1, [1], ids(7))
    assert pool.matched(ids(7, 8)) == {0: 2, 1: 2}
    assert pool.matched(ids(50)) == {}


@pytest.mark.parametrize(
    "form", [lambda h: h, lambda h: h % 2**64, lambda h: b"\0" * 24 + h.to_bytes(8, "big", signed=True)]
)
def test_hashes_of_any_form_link(pool: Pool, form: Callable[[int], EngineHash]) -> None:
    pool.store(0, [form(-2), form(5)], ids(1, 2))
    pool.store(0, [form(-(2**63))], ids(3), parent=form(5))
    assert pool.matched(ids(1, 2, 3)) == {0: 3}
    pool.remove(0, [form(-(2**63)), form(5)])
    assert pool.matched(ids(1, 2, 3)) == {0: 1}


def test_numbers_longer_than_the_wire_allows_are_still_handles(pool: Pool) -> None:
    pool.store(0, [2**70, -(2**70)], ids(1, 2))
    pool.remove(0, [-(2**70)])
    assert pool.matched(ids(1, 2)) == {0: 1}


def test_orphans_wait_for_their_parent_and_chains_of_them_too(pool: Pool) -> None:
    pool.store(0, [4], ids(4), parent=3)
    pool.store(0, [3], ids(3), parent=2)
    assert (pool.delta.orphans, pool.index.parked(0), pool.matched(ids(1, 2))) == (2, 2, {})
    assert pool.index.size_bytes > 0
    pool.store(0, [1, 2], ids(1, 2))
    assert (pool.matched(ids(1, 2, 3, 4)), pool.index.parked(0)) == ({0: 4}, 0)


def test_a_removal_reaches_parked_pages_of_its_tier(pool: Pool) -> None:
    pool.store(0, [2, 3], ids(2, 3), parent=1)
    pool.store(0, [2, 3], ids(2, 3), parent=1, medium=CPU)
    pool.remove(0, [3], CPU)
    pool.store(0, [1], ids(1))
    assert pool.index.pages(0) == (3, 1, 0, 0)


def test_each_removal_takes_one_parked_copy(pool: Pool) -> None:
    pool.store(0, [2, 3], ids(2, 3), parent=1)
    pool.store(0, [2, 3], ids(2, 3), parent=1)
    pool.remove(0, [3, 3, 2])
    pool.store(0, [1], ids(1))
    assert pool.matched(ids(1, 2, 3)) == {0: 2}
    pool.remove(0, [2])
    assert pool.matched(ids(1, 2, 3)) == {0: 1}


def test_orphans_are_bounded_and_gone_with_a_clear(pool: Pool) -> None:
    for start in range(1000, 1600, 2):
        pool.store(0, [start], ids(1), parent=start + 1)
    assert (pool.index.parked(0), pool.delta.orphans) == (256, 300)
    pool.store(1, list(range(100_000, 170_000)), bytes(280_000), parent=1)
    assert pool.index.parked(1) == 0
    assert pool.index.clear(0) == 0
    assert pool.index.size_bytes == 0


def test_self_parents_and_cycles_are_never_attached(pool: Pool) -> None:
    pool.store(0, [11], ids(1))
    pool.store(0, [50], ids(2), parent=50)
    pool.store(0, [70], ids(2), parent=71)
    pool.store(0, [71], ids(3), parent=70)
    pool.store(0, [12], ids(2), parent=11)
    assert pool.matched(ids(1, 2)) == {0: 2}
    assert pool.matched(ids(2, 3)) == {}
    assert pool.delta.skipped == {"cycle": 1}


@pytest.mark.parametrize(
    "event",
    [
        BlockStored([1, 2], None, ids(1), 1),
        BlockStored([1], None, ids(1, 2), 1),
        BlockStored([1], None, ids(1, 2), 2),
        BlockStored([1], None, ids(1), 1, bigrams=True),
        BlockStored([1, 1], None, ids(1, 2), 1),
        BlockStored([], None, ids(1), 1),
    ],
)
def test_stores_that_do_not_fit_are_skipped(pool: Pool, event: BlockStored) -> None:
    pool.index.store(0, event, "", pool.delta)
    assert pool.delta == Delta(skipped={"shape": 1})
    assert pool.index.size_bytes == 0


def test_placeholders_count_where_their_hash_is_known(pool: Pool) -> None:
    pool.store(0, [1, 2, 3], ids(1, 2, 3))
    pool.index.store(0, BlockStored([2, 99], None, b"", 0, CPU), "", pool.delta)
    assert pool.delta.skipped == {"placeholder": 1}
    pool.remove(0, [1, 2, 3])
    assert pool.index.pages(0) == (0, 1, 0, 0)


def test_dropping_one_worker_leaves_the_others(pool: Pool) -> None:
    pool.store(0, [1, 2, 3, 4], ids(1, 2, 3, 4))
    pool.store(1, [1, 2], ids(1, 2))
    pool.store(1, [9], ids(9), parent=2)
    pool.index.drop(0)
    check_tree(pool.index)
    assert pool.matched(ids(1, 2, 3, 4)) == {1: 2}
    assert (pool.index.node_count, pool.index.page_count) == (1, 3)
    pool.index.add(0)
    assert pool.index.pages(0) == (0, 0, 0, 0)
    pool.index.drop(0)
    pool.index.drop(1)
    assert (pool.index.node_count, pool.index.page_count, pool.index.size_bytes) == (0, 0, 0)


def test_a_clear_leaves_nothing_that_the_next_one_must_go_through() -> None:
    index, delta = RadixIndex(1, 4), Delta()
    index.add(0)
    before = getsizeof(index._holdings.tree.holdings[0])
    for number in range(1000):
        index.store(0, BlockStored([number], None, array("I", [number]).tobytes(), 1), "", delta)
    assert getsizeof(index._holdings.tree.holdings[0]) > before
    assert index.clear(0) == 1000
    assert getsizeof(index._holdings.tree.holdings[0]) == before


def test_memory_is_reported_and_given_back(pool: Pool) -> None:
    tokens = range(50_000)
    pool.index.store(0, BlockStored(list(tokens), None, ids(*tokens), 1), "", pool.delta)
    assert 20 * 50_000 < pool.index.size_bytes < 40 * 50_000
    pool.index.remove(0, BlockRemoved(list(tokens[1000:])), pool.delta)
    assert pool.index.size_bytes < 60_000
    assert pool.index.clear(0) == 1000
    assert pool.index.size_bytes == 0


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("backwards", [False, True])
def test_a_long_run_that_goes_page_by_page_is_not_copied_for_each_of_them(shared: bool, backwards: bool) -> None:
    """Twice the pages cost about twice the bytes, not four times. Time, and the native core: benchmarks."""
    few, many = (copied_bytes(count, shared, backwards) for count in (1_000, 2_000))
    assert few < many < 3 * few


def copied_bytes(count: int, shared: bool, backwards: bool) -> int:
    """Bytes of tokens written while one worker's run of `count` pages is removed, one hash at a time."""
    index, page_bytes = RadixIndex(2, 4, run_bytes=512), 8
    for slot in (0, 1)[: 1 + shared]:
        index.add(slot)
        event = BlockStored(list(range(count)), None, ids(*range(2 * count)), 2)
        index.store(slot, event, "", Delta())
    tree, written, before = index._holdings.tree, 0, dict[int, bytes]()
    for page in reversed(range(count)) if backwards else range(count):
        index.remove(0, BlockRemoved([page]), Delta())
        after = {node.id: node.tokens for node in tree._nodes[1:]}
        written += sum(len(tokens) for number, tokens in after.items() if before.get(number) is not tokens)
        before = after
    assert index.page_count == (count if shared else 0)
    assert written > count * page_bytes
    return written


def check_tree(index: AnyRadixIndex) -> None:
    """What must hold between the tree, the table and the workers' sets at any time."""
    if isinstance(index, NativeRadixIndex):
        assert index._core.fault() == ""
        return
    tree = index._holdings.tree
    nodes: set[Node] = set()
    for name, root in tree.roots.items():
        assert root.children
        assert (root.namespace, root.parent, root.start, len(root.hashes)) == (name, None, 0, 0)
        waiting = [root]
        while waiting:
            node = waiting.pop()
            for key, child in node.children.items():
                assert key == child.tokens[: tree.page_bytes]
                assert child.parent is node
                assert child.start == node.start + len(node.hashes)
                waiting.append(child)
            if node is not root:
                nodes.add(node)
    for node in nodes:
        assert len(node.tokens) == len(node.hashes) * tree.page_bytes > 0
        assert node.held or node.children
        only = next(iter(node.children.values())) if len(node.children) == 1 else None
        assert only is None or only.masks != node.masks or tree.run_bytes < RUN_BYTES
        assert [tree.table.find(handle) for handle in node.hashes] == [(node, i) for i in range(len(node.hashes))]
    assert (len(nodes), sum(len(node.hashes) for node in nodes)) == (tree.node_count, tree.page_count)
    assert tree.table.live == tree.page_count
    for slot, held in tree.holdings.items():
        assert held == {node for node in nodes if node.held >> slot & 1}
        for medium in Medium:
            pages = sum(len(node.hashes) for node in held if node.masks[medium] >> slot & 1)
            assert pages == index.pages(slot)[medium]


handles = st.one_of(st.integers(0, 9), st.integers(0, 60))
pages = st.lists(st.integers(0, 1), min_size=1, max_size=6)
slots = st.sampled_from(SLOTS)
namespaces = st.sampled_from(["", "salt"])
media = st.sampled_from([GPU, GPU, GPU, CPU, DISK, OTHER])


class History(RuleBasedStateMachine):
    """Random histories, legal and not, told to the index and to the model."""

    def _empty(self, page_size: int, unit_bytes: int) -> AnyRadixIndex:
        return RadixIndex(page_size, unit_bytes)

    @initialize(page_size=st.sampled_from([1, 2, 4]), unit_bytes=st.sampled_from([4, 8]))
    def start(self, page_size: int, unit_bytes: int) -> None:
        self.index = self._empty(page_size, unit_bytes)
        self.page_bytes = page_size * unit_bytes
        self.model = RadixModel(self.page_bytes)
        self.delta, self.expected = Delta(), Delta()
        for slot in SLOTS:
            self._add(slot)

    @rule(slot=slots, kinds=pages, namespace=namespaces, medium=media, offset=st.sampled_from([0, 0, 0, 1000]))
    def insert(self, slot: int, kinds: list[int], namespace: str, medium: Medium, offset: int) -> None:
        """As an engine does it: store what is missing below what is held. `offset`: an engine with other hashes."""
        tokens = b"".join(map(self._page, kinds))
        chain = [self._chained(namespace, tokens[: (i + 1) * self.page_bytes], offset) for i in range(len(kinds))]
        held = self.model.match(slot, tokens, namespace)[0]
        if held < len(kinds):
            parent = chain[held - 1] if held else None
            self._store(slot, chain[held:], tokens[held * self.page_bytes :], parent, medium, namespace)

    @rule(slot=slots, kinds=pages, namespace=namespaces, medium=media, count=st.integers(1, 4))
    def evict(self, slot: int, kinds: list[int], namespace: str, medium: Medium, count: int) -> None:
        """As an engine does it: the tail of a sequence."""
        tokens = b"".join(map(self._page, kinds))
        chain = [self._chained(namespace, tokens[: (i + 1) * self.page_bytes], 0) for i in range(len(kinds))]
        self._remove(slot, chain[-count:], medium)

    @rule(slot=slots, data=st.data(), kinds=pages, parent=st.none() | handles, medium=media, namespace=namespaces)
    def store_made_up(
        self, slot: int, data: st.DataObject, kinds: list[int], parent: int | None, medium: Medium, namespace: str
    ) -> None:
        hashes = data.draw(st.lists(handles, min_size=len(kinds), max_size=len(kinds)))
        tokens = b"".join(map(self._page, kinds))
        self._store(slot, hashes, tokens, parent, medium, namespace)

    @rule(slot=slots, hashes=st.lists(handles, max_size=6), medium=media)
    def remove_made_up(self, slot: int, hashes: list[int], medium: Medium) -> None:
        self._remove(slot, hashes, medium)

    @rule(slot=slots, hashes=st.lists(handles, max_size=3), medium=media)
    def store_placeholders(self, slot: int, hashes: list[int], medium: Medium) -> None:
        self.index.store(slot, BlockStored(list(hashes), None, b"", 0, medium), "", self.delta)
        self.model.store_known(slot, hashes, medium, self.expected)

    @precondition(lambda self: any(worker.holds for worker in self.model.workers.values()))
    @rule(slot=slots, data=st.data(), medium=media)
    def remove_some_held(self, slot: int, data: st.DataObject, medium: Medium) -> None:
        listed = sorted(self.model.table) + sorted(self.model.workers[slot].meaning)
        if listed:
            self._remove(slot, data.draw(st.lists(st.sampled_from(listed), max_size=8)), medium)

    @rule(slot=slots)
    def clear(self, slot: int) -> None:
        assert self.index.clear(slot) == self.model.clear(slot)

    @rule(slot=slots)
    def drop(self, slot: int) -> None:
        self.index.drop(slot)
        self.model.clear(slot)
        self._add(slot)

    @invariant()
    def same_as_the_model(self) -> None:
        assert self.delta == self.expected
        assert self.index.page_count == len(self.model.pages)
        check_tree(self.index)
        for slot in SLOTS:
            assert self.index.pages(slot) == self.model.pages_of(slot)
            assert self.index.parked(slot) == len(self.model.workers[slot].parked)

    @invariant()
    def same_matches(self) -> None:
        prompts = {path[1] for path in self.model.pages} | {b"", self._page(0) * 7, self._page(1) + b"\0" * 4}
        for namespace in ("", "salt"):
            for prompt in prompts:
                found = {held.slot: held for held in self.index.match(prompt + b"\1" * 3, [namespace], ALL)}
                for slot in SLOTS:
                    depth, by_medium = self.model.match(slot, prompt, namespace)
                    size = self.index.page_size
                    expected = Held(slot, depth * size, tuple(count * size for count in by_medium))  # type: ignore[arg-type]
                    assert found.get(slot, Held(slot, 0, (0, 0, 0, 0))) == expected

    def teardown(self) -> None:
        for slot in SLOTS:
            self.index.drop(slot)
        assert (self.index.node_count, self.index.page_count, self.index.size_bytes) == (0, 0, 0)

    def _add(self, slot: int) -> None:
        self.index.add(slot)
        self.model.workers[slot] = ModelWorker()

    def _page(self, kind: int) -> bytes:
        return bytes([kind]) * self.page_bytes

    def _chained(self, namespace: str, tokens: bytes, offset: int) -> int:
        digest = blake2b(namespace.encode() + b"\0" + tokens, digest_size=4).digest()
        return int.from_bytes(digest, "big") + 1000 + offset

    def _store(
        self, slot: int, hashes: list[int], tokens: bytes, parent: int | None, medium: Medium, namespace: str
    ) -> None:
        bigrams = self.index.unit_bytes == 8
        event = BlockStored(list(hashes), parent, tokens, self.index.page_size, medium, bigrams=bigrams)
        self.index.store(slot, event, namespace, self.delta)
        if len(set(hashes)) < len(hashes):
            self.expected.skip("shape")
        elif parent in hashes:
            self.expected.skip("cycle")
        else:
            self.model.store(slot, hashes, tokens, parent, medium, namespace, self.expected)

    def _remove(self, slot: int, hashes: list[int], medium: Medium) -> None:
        self.index.remove(slot, BlockRemoved(list(hashes), medium), self.delta)
        self.model.remove(slot, hashes, medium, self.expected)


class NativeHistory(History):
    """The same with the native core."""

    def _empty(self, page_size: int, unit_bytes: int) -> AnyRadixIndex:
        return native_radix(page_size, unit_bytes)


class ShortRuns(History):
    """The same with runs that are halved before they are changed, and joined up to two pages only."""

    def _empty(self, page_size: int, unit_bytes: int) -> AnyRadixIndex:
        return RadixIndex(page_size, unit_bytes, run_bytes=2 * page_size * unit_bytes)


TestHistory = History.TestCase
TestHistory.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestNativeHistory = need_native(NativeHistory.TestCase)
TestNativeHistory.settings = TestHistory.settings
TestShortRuns = ShortRuns.TestCase
TestShortRuns.settings = TestHistory.settings
