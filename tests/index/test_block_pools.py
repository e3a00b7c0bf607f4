"""Pools of vLLM workers: small situations with made-up hashes, each a promise of its own."""

from __future__ import annotations

from array import array

import pytest

from index import block_holders
from index.block_hash import HashIdentity, chain, wire_uint64
from index.block_pools import BlockPools
from index.delta import Delta
from index.event import BlockRemoved, BlockStored, EngineHash, ExtraKey
from index.pool import WorkerSpec
from index.prompt import MultimodalItem, Prompt, WorkerMatch
from index.worker import EngineKind, Medium, Worker

pytestmark = pytest.mark.usefixtures("core")

A, B, D = Worker("A", 0), Worker("B", 0), Worker("D", 0)
GPU, CPU, DISK, OTHER = Medium
IDENTITY = HashIdentity("sha256_cbor", "0")


class Play:
    """Workers A and B serve model m, D serves n; blocks of 4 tokens, private hashes unless identified."""

    def __init__(self) -> None:
        self.pools = BlockPools()
        self.delta = Delta()
        for worker, model in ((A, "m"), (B, "m"), (D, "n")):
            self.pools.add(worker, WorkerSpec(model, EngineKind.VLLM))

    def store(
        self,
        worker: Worker,
        blocks: list[EngineHash],
        tokens: range | list[int],
        parent: EngineHash | None = None,
        medium: Medium = GPU,
        size: int = 4,
        group: int = 0,
        kind: str | None = None,
        window: int | None = None,
        extras: list[tuple[ExtraKey, ...] | None] | None = None,
        lora: str | None = None,
    ) -> None:
        packed = array("I", tokens).tobytes()
        self.pools.store(
            worker,
            BlockStored(blocks, parent, packed, size, medium, lora, extras, group, kind, window),
            self.delta,
        )

    def remove(self, worker: Worker, blocks: list[EngineHash], medium: Medium = GPU, group: int = 0) -> None:
        self.pools.drop(worker, BlockRemoved(blocks, medium, group), self.delta)

    def match(
        self, tokens: range | list[int], worker: Worker = A, items: tuple[MultimodalItem, ...] = ()
    ) -> WorkerMatch:
        model = "n" if worker is D else "m"
        prompt = Prompt(array("I", tokens).tobytes(), mm_items=items)
        found = self.pools.match(model, prompt, [worker], None)
        return found.get(worker, WorkerMatch(worker, 0, 0, (0, 0, 0, 0)))

    def matched(self, tokens: range | list[int], worker: Worker = A) -> int:
        return self.match(tokens, worker).matched


@pytest.fixture
def play() -> Play:
    return Play()


def test_a_removal_in_one_group_leaves_the_same_hash_in_another(play: Play) -> None:
    play.store(A, [301, 302], range(1, 9), kind="full_attention")
    play.store(A, [301, 302], range(1, 9), group=1, kind="sliding_window", window=4)
    play.remove(A, [301], group=1)
    assert play.matched(range(1, 10)) == 8
    play.remove(A, [302])
    assert play.matched(range(1, 10)) == 4


def test_a_block_in_two_tiers_is_gone_only_when_both_are(play: Play) -> None:
    play.store(A, [11, 12], range(1, 9))
    play.store(A, [11, 12], range(1, 9), medium=CPU)
    play.remove(A, [11, 12])
    assert play.match(range(1, 10)).by_medium == (0, 8, 0, 0)
    play.store(A, [13], range(9, 13), parent=12)
    assert play.match(range(1, 14)).by_medium == (4, 8, 0, 0)
    play.remove(A, [12], medium=CPU)
    assert play.matched(range(1, 14)) == 4


def test_each_physical_copy_is_removed_on_its_own(play: Play) -> None:
    for _ in range(2):
        play.store(A, [11], range(1, 5))
        play.store(A, [12], range(5, 9), parent=11)
    play.remove(A, [12, 11])
    assert play.matched(range(1, 10)) == 8
    play.remove(A, [12, 11])
    assert play.matched(range(1, 10)) == 0


def test_a_placeholder_counts_only_where_its_hash_is_known(play: Play) -> None:
    play.store(A, [12], [], medium=CPU, size=0)
    assert play.delta.skipped == {"placeholder": 1}
    play.store(A, [11, 12], range(1, 9))
    play.store(A, [12], [], medium=CPU, size=0)
    play.remove(A, [12])
    assert play.match(range(1, 10)).by_medium == (4, 4, 0, 0)
    play.store(A, [99, 98], [], medium=CPU, size=4)
    assert play.delta.skipped == {"placeholder": 3}
    assert play.matched(range(21, 26)) == 0
    assert play.pools.block_size(A) == 4


def test_a_removal_on_one_worker_leaves_the_others(play: Play) -> None:
    for worker in (A, B):
        play.store(worker, [11, 12], range(1, 9))
    play.remove(A, [11, 12])
    assert (play.matched(range(1, 10)), play.matched(range(1, 10), B)) == (0, 8)


def test_events_of_a_batch_apply_in_order(play: Play) -> None:
    play.store(A, [11, 12], range(1, 9))
    play.remove(A, [12])
    play.store(A, [12], range(5, 9), parent=11)
    assert play.matched(range(1, 10)) == 8
    play.store(A, [13], range(9, 13), parent=12)
    play.remove(A, [13])
    assert play.matched(range(1, 14)) == 8


def test_removing_what_is_not_held_changes_nothing(play: Play) -> None:
    play.remove(A, [77])
    play.remove(A, [77], medium=CPU, group=3)
    play.store(A, [77], range(1, 5))
    play.remove(A, [77], medium=CPU)
    assert play.matched(range(1, 6)) == 4
    play.remove(A, [77, 77, 78])
    play.store(A, [77], range(1, 5))
    assert play.matched(range(1, 6)) == 4
    assert play.delta.removed == 1


def test_one_hash_means_two_things_on_two_workers(play: Play) -> None:
    play.store(A, [77], range(1, 5))
    play.store(D, [77], range(31, 35))
    play.store(B, [77], range(51, 55))
    play.store(A, [78], range(5, 9), parent=77)
    play.store(B, [78], range(55, 59), parent=77)
    assert (play.matched(range(1, 10)), play.matched(range(31, 36), D), play.matched(range(51, 60), B)) == (8, 4, 8)
    play.remove(D, [77])
    assert (play.matched(range(1, 10)), play.matched(range(31, 36), D)) == (8, 0)


def test_a_block_that_names_itself_or_a_cycle_is_not_indexed(play: Play) -> None:
    play.store(A, [11], range(1, 5))
    play.store(A, [50], range(5, 9), parent=50)
    play.store(A, [70], range(5, 9), parent=71)
    play.store(A, [71], range(9, 13), parent=70)
    play.store(A, [12], range(5, 9), parent=11)
    assert (play.matched(range(1, 10)), play.matched(range(5, 10))) == (8, 0)
    play.store(A, [70], range(1, 5))
    assert play.pools.parked(A) == 0
    assert play.delta.skipped == {"hash_conflict": 1}


def test_a_partial_entry_changes_neither_block_size_nor_whole_blocks(play: Play) -> None:
    play.store(A, [11], range(1, 5))
    play.store(A, [12], [5, 6], parent=11, size=2)
    assert play.matched(range(1, 8)) == 4
    play.remove(A, [12])
    play.store(A, [13], range(5, 9), parent=11)
    assert play.matched(range(1, 12)) == 8
    assert play.pools.block_size(A) == 4


NAMED: list[tuple[str | None, str | None]] = [("sql", None), (None, "salt"), ("sql", "salt")]


def named_match(play: Play, tokens: range, named: tuple[str | None, str | None], worker: Worker = A) -> WorkerMatch:
    prompt = Prompt(array("I", tokens).tobytes(), *named)
    return play.pools.match("m", prompt, [worker], None).get(worker, WorkerMatch(worker, 0, 0, (0, 0, 0, 0)))


def named_store(
    play: Play, blocks: list[EngineHash], tokens: range, named: tuple[str | None, str | None], worker: Worker = A
) -> None:
    lora, _ = named
    first: tuple[ExtraKey, ...] = tuple(key for key in named if key is not None)
    rest: tuple[ExtraKey, ...] | None = None if lora is None else (lora,)
    play.store(worker, blocks, tokens, lora=lora, extras=[first, *[rest] * (len(blocks) - 1)])


@pytest.mark.parametrize("medium", [CPU, DISK, OTHER])
@pytest.mark.parametrize("named", NAMED)
def test_a_copy_below_the_gpu_that_names_nothing_keeps_the_known_meaning(
    play: Play, named: tuple[str | None, str | None], medium: Medium
) -> None:
    named_store(play, [11, 12], range(1, 9), named)
    play.store(A, [11, 12, 13], range(1, 13), medium=medium)
    play.remove(A, [11, 12])
    assert not play.delta.lossy
    assert named_match(play, range(1, 14), named).matched == 12
    assert play.matched(range(1, 14)) == 0
    play.remove(A, [11, 12, 13], medium=medium)
    assert named_match(play, range(1, 14), named).matched == 0
    assert list(play.pools.counts(A)) == [0, 0, 0, 0]


@pytest.mark.parametrize("named", NAMED)
def test_one_known_block_tells_the_namespace_of_the_whole_event(
    play: Play, named: tuple[str | None, str | None]
) -> None:
    named_store(play, [11, 12], range(1, 9), named)
    play.remove(A, [11])
    play.store(A, [11, 12, 13], range(1, 13), medium=CPU)
    play.store(A, [14], range(13, 17), parent=13, medium=CPU)
    assert not play.delta.lossy
    assert named_match(play, range(1, 18), named).by_medium == (4, 12, 0, 0)
    assert play.matched(range(1, 18)) == 0


def test_a_copy_whose_tokens_fit_no_known_namespace_is_refused_as_ever(play: Play) -> None:
    named_store(play, [11], range(1, 5), ("sql", None))
    play.store(A, [11], range(31, 35), medium=CPU)
    assert play.delta.skipped == {"hash_conflict": 1}
    assert (play.matched(range(1, 6)), play.matched(range(31, 36))) == (0, 0)


def test_a_meaning_is_known_from_another_worker_of_the_domain(play: Play) -> None:
    for worker, block in ((A, 1), (B, 1)):
        play.store(worker, [block], range(91, 95))
        play.pools.identify(worker, IDENTITY, shared=True)
    named_store(play, [11, 12], range(1, 9), ("sql", None), B)
    play.store(A, [11, 12], range(1, 9), medium=CPU)
    assert named_match(play, range(1, 10), ("sql", None)).by_medium == (0, 8, 0, 0)
    assert play.matched(range(1, 10)) == 0


def test_a_copy_that_names_another_adapter_is_refused_as_ever(play: Play) -> None:
    named_store(play, [11], range(1, 5), ("sql", None))
    play.store(A, [11], range(1, 5), medium=CPU, lora="chat", extras=[("chat",)])
    assert play.delta.skipped == {"hash_conflict": 1}


def test_an_unknown_tier_counts_as_other(play: Play) -> None:
    play.store(A, [11], range(1, 5), medium=CPU)
    play.store(A, [12], range(5, 9), parent=11)
    play.store(A, [13], range(9, 13), parent=12, medium=OTHER)
    assert play.match(range(1, 14)).by_medium == (4, 4, 0, 4)


def test_copies_count_once_in_the_sizes(play: Play) -> None:
    for worker in (A, A, B):
        play.store(worker, [11], range(1, 5))
    assert play.pools.counts(A) == play.pools.counts(B) == (1, 0, 0, 0)
    assert [(pool.blocks, pool.holders) for pool in play.pools.stats()] == [(1, 2)]


def test_a_clear_empties_all_tiers(play: Play) -> None:
    play.store(A, [11], range(1, 5))
    play.store(A, [11], range(1, 5), medium=CPU)
    assert play.pools.clear(A) == 2
    assert play.matched(range(1, 6)) == 0
    assert next(play.pools.stats()).size_bytes == 0


def test_an_orphan_waits_for_its_parent_and_keeps_its_own_tier(play: Play) -> None:
    play.store(A, [11], range(1, 5))
    play.store(A, [13], range(9, 13), parent=12)
    play.store(A, [13], range(9, 13), parent=12, medium=CPU)
    play.remove(A, [13], medium=CPU)
    assert (play.delta.orphans, play.pools.parked(A), play.matched(range(1, 14))) == (2, 2, 4)
    play.store(A, [12], range(5, 9), parent=11)
    assert (play.pools.parked(A), play.match(range(1, 14)).by_medium) == (0, (12, 0, 0, 0))


def test_children_of_an_orphan_that_is_gone_are_kept(play: Play) -> None:
    play.store(A, [12], range(5, 9), parent=11)
    play.store(A, [13], range(9, 13), parent=12)
    play.remove(A, [12])
    play.store(A, [11], range(1, 5))
    assert (play.pools.parked(A), play.matched(range(1, 14))) == (0, 4)
    play.store(A, [12], range(5, 9), parent=11)
    assert play.matched(range(1, 14)) == 12


def test_a_first_store_of_a_partial_entry_does_not_fix_the_block_size(play: Play) -> None:
    play.store(A, [1], [1, 2], size=2)
    play.store(A, [9], range(9, 13), parent=8)
    play.store(A, [11, 12], range(1, 9))
    play.store(A, [8], range(9, 13), parent=12)
    assert play.pools.block_size(A) == 4
    assert play.matched(range(1, 14)) == 12
    assert [(pool.block_size, pool.workers) for pool in play.pools.stats()] == [(4, 1)]
    play.remove(A, [1, 11, 12, 8, 9])
    assert next(play.pools.stats()).size_bytes == 0


def test_parked_blocks_survive_the_move_to_another_block_size(play: Play) -> None:
    play.store(A, [6], [7, 8], parent=5, size=2)
    play.store(A, [9], range(5, 9), parent=11)
    assert play.pools.parked(A) == 2
    play.store(A, [11], range(1, 5))
    assert (play.pools.block_size(A), play.matched(range(1, 10)), play.pools.parked(A)) == (4, 8, 1)


def test_a_shared_identity_joins_what_is_held_to_the_fleet(play: Play) -> None:
    for worker in (A, B):
        play.store(worker, [11], range(1, 5))
        play.pools.identify(worker, IDENTITY, shared=True)
    play.store(B, [12], range(5, 9), parent=11)
    play.store(A, [13], range(9, 13), parent=12)
    assert play.pools.parked(A) == 0
    assert (play.matched(range(1, 14)), play.matched(range(1, 14), B)) == (4, 8)
    blocks = next(play.pools.stats())
    assert (blocks.blocks, blocks.holders) == (3, 4)


def test_a_worker_whose_hashes_contradict_the_fleet_keeps_its_own_domain(play: Play) -> None:
    play.store(A, [11], range(1, 5))
    play.store(B, [11], range(31, 35))
    for worker in (A, B):
        play.pools.identify(worker, IDENTITY, shared=True)
    assert (play.matched(range(1, 6)), play.matched(range(31, 36), B)) == (4, 4)
    play.store(B, [12], range(35, 39), parent=11)
    assert play.matched(range(31, 40), B) == 8


def test_a_hash_that_changes_its_meaning_is_refused_and_counted(play: Play) -> None:
    play.store(A, [11], range(1, 5))
    play.store(A, [11, 12], range(31, 39))
    assert play.delta.skipped == {"hash_conflict": 1}
    assert play.delta.lossy
    assert (play.matched(range(1, 6)), play.matched(range(31, 40))) == (4, 0)
    play.store(A, [11], range(31, 35), medium=DISK)
    play.remove(A, [11])
    assert next(play.pools.stats()).size_bytes == 0


def test_the_images_of_a_coarser_group_do_not_contradict_the_finer_one(play: Play) -> None:
    image = [("x", 1)]
    items = (MultimodalItem("x", 5, 2),)
    play.store(A, [11, 12], range(1, 9), extras=[None, tuple(image)], kind="full_attention")
    play.store(A, [12], range(1, 9), size=8, group=1, kind="mamba", extras=[(("x", 5),)])
    assert not play.delta.skipped
    assert play.match(range(1, 10), items=items)[1:3] == (8, 8)


def test_hashes_without_a_meaning_are_bounded(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_holders, "MAX_KEYLESS", 2)
    play.store(A, [11], range(1, 5))
    for block in (21, 22, 22, 23):
        play.store(A, [block], range(1, 5), parent=99, group=1, kind="sliding_window", window=9)
    assert play.delta.skipped == {"keyless": 1}
    assert play.delta.lossy
    play.remove(A, [11])
    play.remove(A, [21, 22, 22, 23], group=1)
    assert next(play.pools.stats()).size_bytes == 0


def test_a_malformed_store_is_counted_and_lossy(play: Play) -> None:
    play.store(A, [11, 12], range(1, 8))
    assert play.delta.skipped == {"shape": 1}
    assert play.delta.lossy
    assert play.matched(range(1, 8)) == 0


def test_windows_without_full_attention_are_followed_by_the_engines_own_hashes(play: Play) -> None:
    blocks = [wire_uint64(digest) for digest in chain(IDENTITY, range(1, 17), 4)]
    play.store(A, [*blocks[2:]], range(1, 17), kind="sliding_window", window=8)
    assert play.match(range(1, 18))[1:3] == (0, 0)
    play.pools.identify(A, IDENTITY, shared=True)
    assert play.match(range(1, 18))[1:3] == (16, 16)
    assert play.match(range(1, 17))[1:3] == (0, 0)
    play.remove(A, [blocks[2]])
    assert play.match(range(1, 18))[1:3] == (0, 0)


def test_a_restart_forgets_layout_and_identity(play: Play) -> None:
    play.store(A, [11], range(1, 5))
    play.pools.identify(A, IDENTITY, shared=True)
    assert play.pools.restart(A) == 1
    assert play.pools.block_size(A) is None
    assert list(play.pools.stats()) == []
    play.store(A, [11], range(1, 17), size=16)
    assert (play.pools.block_size(A), play.matched(range(1, 18))) == (16, 16)


def test_what_is_learnt_of_a_worker_later_counts_at_once(play: Play) -> None:
    play.store(A, [11, 12], range(1, 9))
    play.pools.respec(A, WorkerSpec("m", EngineKind.VLLM, eagle=True))
    assert play.match(range(1, 10))[1:3] == (8, 4)


def test_groups_beyond_the_bound_are_refused(play: Play) -> None:
    for group in range(300):
        play.store(A, [1], range(1, 5), group=group, kind="full_attention")
    assert play.delta.skipped == {"group_limit": 300 - 256}
    assert play.delta.lossy
    play.store(A, [2], range(5, 9), parent=1, group=255, kind="full_attention")
    assert play.delta.skipped == {"group_limit": 300 - 256}


def test_who_is_not_asked_for_is_left_out_whoever_has_come_since(play: Play) -> None:
    prompt, alone, both = Prompt(array("I", range(8)).tobytes()), frozenset([A]), frozenset([A, B])

    def holders(only: frozenset[Worker]) -> set[Worker]:
        return set(play.pools.match("m", prompt, only, None))

    play.store(A, [1], range(4))
    assert [holders(only) for only in (alone, alone, both)] == [{A}, {A}, {A}]
    play.store(B, [1], range(4))
    assert [holders(only) for only in (both, alone, alone, both)] == [{A, B}, {A}, {A}, {A, B}]
    play.pools.remove(B)
    play.pools.add(B, WorkerSpec("m", EngineKind.VLLM))
    assert [holders(only) for only in (alone, both)] == [{A}, {A}]
    play.store(D, [1], range(4))
    play.store(B, [1], range(4))
    assert [holders(only) for only in (alone, both, frozenset([D]))] == [{A}, {A, B}, set()]
