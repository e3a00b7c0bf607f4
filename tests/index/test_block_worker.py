"""What a worker's stores show of its group layout."""

from __future__ import annotations

from index.block_worker import BlockWorker, HashDomain
from index.event import BlockStored


def learnt(*groups: tuple[int, str, int], unit: int | None = None) -> BlockWorker:
    """A worker after stores of (group, kind, block size), with `unit` declared."""
    worker = BlockWorker(1, HashDomain(), match_unit=unit)
    for group, kind, size in groups:
        window = 40 if kind == "sliding_window" else None
        worker.learn(BlockStored([1], None, bytes(4 * size), size, group=group, kind=kind, window=window))
    return worker


def test_one_full_attention_group_is_plain() -> None:
    worker = learnt((0, "full_attention", 16))
    assert (worker.plain, worker.block_size, worker.hash_unit) == (True, 16, None)


def test_a_partial_entry_is_no_block_size_whichever_comes_first() -> None:
    for order in ([16, 64], [64, 16]):
        worker = learnt((1, "mamba", 64), *((0, "full_attention", size) for size in order))
        assert (worker.block_size, worker.hash_unit, worker.plain) == (64, 16, False)


def test_keys_follow_equal_blocks_whatever_unit_was_declared() -> None:
    assert learnt((0, "full_attention", 64), (1, "mamba", 64), unit=16).hash_unit is None


def test_the_unit_seen_outweighs_the_declared_one() -> None:
    groups = [(0, "full_attention", 64), (1, "mamba", 64), (0, "full_attention", 32)]
    assert learnt(*groups, unit=16).hash_unit == 32


def test_of_different_blocks_the_unit_divides_all() -> None:
    groups = [(0, "full_attention", 48), (1, "sliding_window", 32)]
    assert learnt(*groups).hash_unit == 16
    assert learnt(*groups, unit=8).hash_unit == 8


def test_without_full_attention_hashes_are_derived_too() -> None:
    worker = learnt((0, "sliding_window", 32), (1, "sliding_window", 48))
    assert (worker.block_size, worker.hash_unit, worker.full_group, worker.plain) == (16, 16, None, False)
    assert learnt((0, "mamba", 32)).hash_unit == 32


def test_placeholders_teach_nothing() -> None:
    worker = BlockWorker(1, HashDomain())
    worker.learn(BlockStored([1], None, b"", 0))
    worker.learn(BlockStored([1], None, b"", 16))
    assert (worker.groups, worker.block_size) == ({}, None)
