"""Rules of vLLM's block pool that can be said in one example."""

from __future__ import annotations

from deploy.engine.block_pool import BlockPool
from deploy.engine.cache import KVSequence, Namespace
from index.block_hash import HashIdentity, chain, wire_uint64
from index.event import AllBlocksCleared, BlockRemoved, BlockStored
from tests.deploy.engine.running import decode, extend, prefill, run

IDENTITY = HashIdentity("sha256_cbor", "42")


def blocks_of(sequence: KVSequence) -> list[int]:
    return [slot // 4 for slot in sequence.slots[::4]]


def test_only_full_blocks_are_cached_and_a_hit_ends_at_the_first_miss() -> None:
    pool = BlockPool(20, 4)
    run(pool, list(range(11)), [])
    assert pool.peek(list(range(11))) == 8
    assert pool.peek([*range(4), 99, *range(5, 11)]) == 4


def test_a_fully_cached_prompt_computes_its_last_block_again_as_a_copy() -> None:
    pool = BlockPool(20, 4)
    first = prefill(pool, list(range(8)))
    pool.take_events()
    second = prefill(pool, list(range(8)))
    assert second.cached_tokens == 4
    assert blocks_of(first)[0] == blocks_of(second)[0]
    assert blocks_of(first)[1] != blocks_of(second)[1]
    (copy,) = pool.take_events()
    assert isinstance(copy, BlockStored)
    assert len(copy.block_hashes) == 1


def test_a_block_is_announced_when_it_is_scheduled_not_when_it_is_computed() -> None:
    pool = BlockPool(20, 4)
    assert pool.start(list(range(8)), limit=6) is not None
    assert len(pool.take_events()) == 1
    assert pool.peek(list(range(8))) == 4


def test_decoded_tokens_fill_blocks_too() -> None:
    pool = BlockPool(20, 4, IDENTITY)
    sequence = prefill(pool, [0, 1, 2])
    decode(pool, sequence, [3])
    assert pool.take_events() == []
    extend(pool, sequence)
    (stored,) = pool.take_events()
    assert isinstance(stored, BlockStored)
    assert stored.block_hashes == [wire_uint64(chain(IDENTITY, [0, 1, 2, 3], 4)[0])]


def test_blocks_are_reused_from_the_end_of_the_least_recently_freed_sequence() -> None:
    pool = BlockPool(5, 4, IDENTITY)
    run(pool, list(range(8)), [])
    run(pool, list(range(100, 108)), [])
    pool.take_events()
    run(pool, list(range(200, 204)), [])
    digests = chain(IDENTITY, list(range(8)), 4)
    removed, _ = pool.take_events()
    assert removed == BlockRemoved([wire_uint64(digests[1])])
    assert pool.peek([*range(8), 0]) == 4


def test_blocks_without_content_are_reused_before_all_others() -> None:
    pool = BlockPool(4, 4)
    run(pool, list(range(4)), [])
    half = prefill(pool, [9])
    (number,) = blocks_of(half)
    pool.finish(half)
    assert blocks_of(prefill(pool, [8]))[0] == number


def test_a_held_block_is_never_evicted() -> None:
    pool = BlockPool(4, 4)
    holder = prefill(pool, list(range(8)))
    pool.take_events()
    run(pool, [50, 51, 52, 53], [])
    run(pool, [60, 61, 62, 63], [])
    assert pool.peek([*range(8), 0]) == 8
    assert pool.start(list(range(70, 78))) is None
    pool.finish(holder)
    assert pool.start(list(range(70, 78))) is not None


def test_namespaces_share_nothing() -> None:
    pool = BlockPool(40, 4)
    prompt = list(range(9))
    adapter, moved = Namespace(lora=("sql", "/a")), Namespace(lora=("sql", "/b"))
    spaces = [Namespace(), Namespace(cache_salt="x"), Namespace(cache_salt="y"), adapter, moved]
    for space in spaces:
        assert pool.peek(prompt, space) == 0
        run(pool, prompt, [], space)
    assert [pool.peek(prompt, space) for space in spaces] == [8] * 5


def test_a_reset_is_refused_while_a_block_is_held() -> None:
    pool = BlockPool(10, 4)
    sequence = prefill(pool, list(range(8)))
    assert not pool.clear()
    pool.finish(sequence)
    pool.take_events()
    assert pool.clear()
    assert pool.take_events() == [AllBlocksCleared()]
    assert pool.peek(list(range(8))) == 0


def test_hashes_can_be_sent_whole() -> None:
    pool = BlockPool(10, 4, IDENTITY, int_hashes=False)
    run(pool, list(range(4)), [])
    (stored,) = pool.take_events()
    assert isinstance(stored, BlockStored)
    assert stored.block_hashes == list(chain(IDENTITY, list(range(4)), 4))
