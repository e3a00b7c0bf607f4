"""Parked stores: bounded, adopted in order, and told apart by group and tier when a removal comes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from index import orphans as module
from index.event import BlockStored, EngineHash
from index.orphans import Orphans
from index.worker import Medium

GPU = (0, Medium.GPU)


def event(
    blocks: list[EngineHash], parent: EngineHash | None, medium: Medium = Medium.GPU, group: int = 0
) -> BlockStored:
    return BlockStored(blocks, parent, bytes(16 * len(blocks)), 4, medium, group=group)


def parked(*events: BlockStored) -> Orphans:
    orphans = Orphans()
    for each in events:
        orphans.park(each)
    return orphans


def test_adopted_in_the_order_they_came() -> None:
    orphans = parked(event([3], 1), event([4], 2), event([5], 1))
    assert [orphan.event.block_hashes for orphan in orphans.adopt([2, 1])] == [[3], [4], [5]]
    assert not orphans
    assert orphans.size_bytes == 0


def test_a_block_that_names_itself_as_parent_is_not_parked() -> None:
    assert not parked(event([50], 50), event([51, 52], 52))


def test_a_removal_takes_one_copy_of_its_own_group_and_tier() -> None:
    orphans = parked(event([3], 1), event([3], 1, Medium.CPU), event([3], 1, group=1))
    assert orphans.removed(3, (0, Medium.CPU))
    assert not orphans.removed(3, (0, Medium.CPU))
    assert not orphans.removed(3, (2, Medium.GPU))
    assert [orphan.gone for orphan in orphans.adopt([1])] == [[], [3], []]


def test_each_copy_can_be_removed_once() -> None:
    orphans = parked(event([3], 1), event([3], 1))
    assert [orphans.removed(3, GPU) for _ in range(3)] == [True, True, False]


def test_beyond_the_bound_of_events_the_oldest_goes() -> None:
    orphans = parked(*(event([number + 1000], number) for number in range(module.MAX_EVENTS + 5)))
    assert len(orphans) == module.MAX_EVENTS
    assert orphans.adopt(range(5)) == []
    assert len(orphans.adopt([5])) == 1


def test_beyond_the_bound_of_bytes_the_oldest_goes() -> None:
    big = bytes(module.MAX_BYTES // 2)
    orphans = parked(*(BlockStored([number], 100 + number, big, 4) for number in range(3)))
    assert len(orphans) == 2
    assert orphans.size_bytes == 2 * len(big)


hashes = st.integers(0, 5)


@given(st.lists(st.one_of(st.tuples(st.lists(hashes, max_size=3), hashes), hashes, st.sets(hashes)), max_size=30))
def test_nothing_is_left_when_all_is_adopted(history: list[tuple[list[int], int] | int | set[int]]) -> None:
    orphans = Orphans()
    expected = 0
    for step in history:
        if isinstance(step, tuple):
            blocks, parent = step
            orphans.park(event(list(blocks), parent))
            expected += parent not in blocks
        elif isinstance(step, set):
            expected -= len(orphans.adopt(step))
        else:
            orphans.removed(step, GPU)
        assert len(orphans) == expected
    orphans.adopt(range(6))
    assert not any([orphans._parked, orphans._by_parent, orphans._by_hash, orphans.size_bytes])


def test_clear_forgets_everything() -> None:
    orphans = parked(event([3], 1))
    orphans.clear()
    assert not any([orphans._parked, orphans._by_parent, orphans._by_hash, orphans.size_bytes])
