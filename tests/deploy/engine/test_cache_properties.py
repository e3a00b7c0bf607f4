"""What both caches promise a scheduler and a model, under random requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings

from deploy.engine.block_pool import BlockPool
from deploy.engine.cache import PLAIN, KVCache, Namespace
from deploy.engine.radix_cache import RadixCache
from tests.deploy.engine.running import run
from tests.deploy.engine.slot_kinds import VECTORS
from tests.deploy.engine.workloads import Action, Workload, actions, texts_of

SPACES = [PLAIN, PLAIN, Namespace(cache_salt="salt-1")]

CACHES: list[Any] = [
    pytest.param(lambda: BlockPool(25, 4), id="blocks of 4"),
    pytest.param(lambda: BlockPool(7, 16), id="blocks of 16"),
    pytest.param(lambda: BlockPool(25, 4, overlap=True), id="blocks of 4, overlap"),
    pytest.param(lambda: RadixCache(96, 1, overlap=True), id="radix, pages of 1, overlap"),
    pytest.param(lambda: RadixCache(96, 4, overlap=True, bigrams=True), id="radix, pages of 4, overlap, bigrams"),
    *(
        pytest.param(
            lambda size=size, policy=policy, bigrams=bigrams: RadixCache(96, size, policy=policy, bigrams=bigrams),
            id=f"radix, pages of {size}, {policy}, {'bigrams' if bigrams else 'tokens'}",
        )
        for size, policy, bigrams in [
            (1, "lru", False),
            (16, "lru", False),
            (1, "slru", True),
            (4, "lfu", True),
            (4, "mru", False),
        ]
    ),
]


@pytest.mark.parametrize("build", CACHES)
def test_reused_kv_is_the_text_s_own_and_slots_are_accounted_for(build: Callable[[], KVCache]) -> None:
    """After every step: no two texts in one slot, no KV of another text read, every slot in one account."""

    @given(actions(SPACES))
    @settings(deadline=None, max_examples=15)
    def check(script: list[Action]) -> None:
        workload = Workload(build())
        for action in script:
            workload.do(action)
            slots_hold_one_text_each(workload)
            slots_add_up(workload)
        workload.drop_all()
        assert workload.cache.stats().used == 0
        assert workload.cache.clear()
        assert workload.cache.stats().free == workload.cache.stats().total

    check()


def slots_hold_one_text_each(workload: Workload) -> None:
    holding: dict[int, object] = {}
    for sequence in workload.running:
        assert len(sequence.slots) == sequence.computed_tokens
        for slot, text in zip(sequence.slots, texts_of(sequence), strict=False):
            assert holding.setdefault(slot, text) == text
            assert workload.memory[slot] == text
            assert 0 < slot < workload.cache.slots_total


def slots_add_up(workload: Workload) -> None:
    stats = workload.cache.stats()
    assert stats.used + stats.evictable + stats.free == stats.total
    assert min(stats) >= 0
    held = {slot for sequence in workload.running for slot in sequence.slots}
    assert len(held) <= stats.used
    if not workload.running:
        assert stats.used == 0


@pytest.mark.parametrize("build", CACHES)
def test_a_full_cache_refuses_and_stays_as_it_was(build: Callable[[], KVCache]) -> None:
    cache = build()
    first = cache.start(list(range(50)))
    assert first is not None
    cache.computed(first)
    before = cache.stats()
    assert cache.start(list(range(100, 160))) is None
    assert cache.stats() == before
    first.tokens.extend(range(50, 120))
    assert not cache.extend(first, 70)
    assert cache.stats() == before
    assert len(first.slots) == 50
    assert cache.extend(first, 1)


@pytest.mark.parametrize("build", CACHES)
def test_a_lookup_changes_nothing(build: Callable[[], KVCache]) -> None:
    cache = build()
    run(cache, list(range(40)), [1, 2])
    cache.take_events()
    assert cache.peek(list(range(38))) == cache.peek(list(range(38))) > 0
    assert cache.take_events() == []


@pytest.mark.parametrize("build", CACHES)
def test_at_least_one_token_is_left_to_compute(build: Callable[[], KVCache]) -> None:
    cache = build()
    for length in (1, 2, 16, 32, 33):
        run(cache, list(range(length)), [])
        assert cache.peek(list(range(length))) < length


@pytest.mark.parametrize("build", CACHES)
def test_without_reuse_nothing_is_taken_from_the_cache(build: Callable[[], KVCache]) -> None:
    cache = build()
    run(cache, list(range(33)), [])
    sequence = cache.start(list(range(33)), reuse=False)
    assert sequence is not None
    assert sequence.cached_tokens == 0
    assert list(sequence.pending) == list(range(33))
    cache.computed(sequence)
    cache.finish(sequence)
    assert cache.stats().used == 0


@pytest.mark.parametrize("vector", VECTORS)
def test_slots_are_kept_in_either_form(vector: Any) -> None:
    cache = RadixCache(96, vector=vector)
    run(cache, list(range(20)), [1, 2, 3])
    run(cache, [*range(10), *range(50, 60)], [4])
    sequence = cache.start([*range(20), 1, 9])
    assert sequence is not None
    assert sequence.cached_tokens == 21
    assert len(set(sequence.slots)) == 22
