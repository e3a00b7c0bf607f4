"""Rules of SGLang's radix cache that can be said in one example."""

from __future__ import annotations

from array import array

import pytest

from deploy.engine.cache import KVSequence, Namespace
from deploy.engine.radix_cache import RadixCache
from index.event import AllBlocksCleared, BlockRemoved, BlockStored
from tests.deploy.engine.running import begin, decode, prefill, run


def stored_tokens(cache: RadixCache) -> list[list[int]]:
    return [list(array("I", event.tokens)) for event in cache.take_events() if isinstance(event, BlockStored)]


def test_the_first_event_says_that_the_cache_is_empty() -> None:
    assert RadixCache(10).take_events() == [AllBlocksCleared()]


def test_a_chunk_is_inserted_when_the_next_one_is_scheduled_and_the_last_one_at_once() -> None:
    cache = RadixCache(100)
    sequence = begin(cache, list(range(10)), limit=4)
    assert stored_tokens(cache) == []
    assert cache.extend(sequence, 6)
    assert stored_tokens(cache) == [[0, 1, 2, 3]]
    cache.computed(sequence)
    assert stored_tokens(cache) == [[4, 5, 6, 7, 8, 9]]


def test_decoding_inserts_nothing_and_the_end_all_but_the_last_sampled_token() -> None:
    cache = RadixCache(100)
    sequence = prefill(cache, [0, 1, 2])
    cache.take_events()
    decode(cache, sequence, [7, 8, 9])
    assert stored_tokens(cache) == []
    cache.finish(sequence)
    assert stored_tokens(cache) == [[7, 8]]


def test_an_aborted_request_leaves_what_its_chunks_inserted() -> None:
    cache = RadixCache(100)
    sequence = begin(cache, list(range(10)), limit=4)
    assert cache.extend(sequence, 4)
    cache.computed(sequence)
    cache.finish(sequence, keep=False)
    assert cache.peek(list(range(10))) == 4
    assert cache.stats().used == 0


def test_a_duplicate_is_freed_and_the_request_goes_on_with_the_tree_s_copy() -> None:
    cache = RadixCache(100)
    first, second = begin(cache, list(range(8)), limit=4), begin(cache, list(range(8)), limit=4)
    assert set(first.slots).isdisjoint(second.slots)
    for sequence in (first, second):
        assert cache.extend(sequence, 4)
        cache.computed(sequence)
    assert first.slots == second.slots
    assert cache.stats().used == 8


def test_hits_are_whole_pages_and_leave_the_last_token() -> None:
    cache = RadixCache(320, 16)
    run(cache, list(range(96)), [])
    assert cache.peek(list(range(96))) == 80
    assert cache.peek(list(range(97))) == 96
    assert cache.peek(list(range(90))) == 80


def test_bigrams_leave_two_tokens() -> None:
    cache = RadixCache(100, bigrams=True)
    run(cache, list(range(10)), [])
    assert cache.peek(list(range(10))) == 8
    assert cache.peek([*range(5), 99, 98]) == 4
    (_, stored) = cache.take_events()
    assert isinstance(stored, BlockStored)
    assert stored.bigrams
    assert list(array("I", stored.tokens))[:4] == [0, 1, 1, 2]


def test_whole_leaves_go_and_their_hashes_are_named_leaf_first() -> None:
    cache = RadixCache(12)
    run(cache, [1, 2, 3, 4], [5, 6, 7])
    _, first = cache.take_events()
    assert isinstance(first, BlockStored)
    run(cache, list(range(20, 30)), [])
    removed, _ = cache.take_events()
    assert isinstance(removed, BlockRemoved)
    assert removed.block_hashes == [*first.block_hashes[4:], *first.block_hashes[:4]]


def test_a_locked_path_is_never_evicted() -> None:
    cache = RadixCache(12)
    holder = prefill(cache, [1, 2, 3, 4])
    for first in (20, 30, 40):
        run(cache, list(range(first, first + 8)), [])
    assert cache.peek([1, 2, 3, 4, 5]) == 4
    assert cache.start(list(range(50, 59))) is None
    cache.finish(holder)
    assert cache.start(list(range(50, 59))) is not None


def test_namespaces_share_nothing_and_an_empty_name_is_none() -> None:
    cache = RadixCache(100)
    prompt = list(range(9))
    spaces = [Namespace(), Namespace(cache_salt="x"), Namespace(extra_key="x"), Namespace("x", "x")]
    for space in spaces:
        assert cache.peek(prompt, space) == 0
        run(cache, prompt, [], space)
    assert [cache.peek(prompt, space) for space in spaces] == [8] * 4
    assert cache.peek(prompt, Namespace(cache_salt="", extra_key="")) == 8


def test_a_namespace_leaves_no_trace_when_its_last_leaf_is_evicted() -> None:
    cache = RadixCache(8)
    for number in range(50):
        run(cache, list(range(8)), [], Namespace(cache_salt=str(number)))
    assert len(cache.tree.namespaces) == 1


@pytest.mark.parametrize(
    ("policy", "left"),
    [("lru", {1, 3}), ("lfu", {1, 3}), ("fifo", {3}), ("mru", {2, 3}), ("filo", {1, 2}), ("slru", {1, 3})],
)
def test_policies_choose_their_victims(policy: str, left: set[int]) -> None:
    """Three prompts, the first one used again; then two tokens must go.

    Using the first one again splits it before its last token; the upper part counts as created then.
    """
    cache = RadixCache(14, policy=policy)
    prompts: dict[int, list[int]] = {number: [number * 10 + at for at in range(4)] for number in (1, 2, 3)}
    for number in (1, 2, 3, 1):
        run(cache, prompts[number], [])
    run(cache, [50, 51, 52, 53], [])
    assert {number for number, prompt in prompts.items() if cache.peek([*prompt, 0]) == 4} == left


def test_a_preempted_request_starts_again_with_its_output() -> None:
    cache = RadixCache(100)
    sequence = prefill(cache, [1, 2, 3])
    decode(cache, sequence, [7, 8, 9])
    cache.finish(sequence, keep=False)
    again: KVSequence | None = cache.start(sequence.tokens, prompt_length=3)
    assert again is not None
    assert (again.cached_tokens, again.prompt_length, len(again.tokens)) == (3, 3, 6)
