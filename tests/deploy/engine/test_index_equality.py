"""The router's index, fed with a cache's events, knows the cache's own hits: for every prompt, after every step.

This is what the whole router rests on: events alone, no look into the engine.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import pytest
from hypothesis import given, settings

from deploy.engine.block_pool import BlockPool
from deploy.engine.cache import PLAIN, KVCache, Namespace
from deploy.engine.eviction_policy import POLICIES
from deploy.engine.radix_cache import RadixCache
from index.block_hash import HashIdentity
from index.event import BlockStored, EventBatch
from index.index import Index
from index.page_hash import lora_id
from index.pool import WorkerSpec
from index.prompt import MultimodalItem, Prompt
from index.worker import EngineKind, Worker
from tests.deploy.engine.workloads import Action, Workload, actions

WORKER = Worker("one", 0)
IDENTITY = HashIdentity("sha256_cbor", None)
ADAPTER = ("sql", "/adapters/sql")

SALTED = [PLAIN, PLAIN, Namespace(cache_salt="salt-1"), Namespace(cache_salt="salt-2")]
VLLM_SPACES = [*SALTED, Namespace(lora=ADAPTER), Namespace(mm_items=(MultimodalItem("img-1", 1, 12),))]
DYNAMO_SPACES = [
    *SALTED,
    Namespace(extra_key="tenant-a"),
    Namespace(extra_key="tenant-b" + lora_id(*ADAPTER), cache_salt="salt-1"),
]


class Follower:
    """A router's index that sees one cache's events and nothing else of it."""

    def __init__(self, cache: KVCache, engine: EngineKind, *, eagle: bool = False, dynamo: bool = False) -> None:
        self.cache, self.engine = cache, engine
        self.index = Index()
        self.index.add(WORKER, WorkerSpec("m", engine, eagle=eagle and engine is EngineKind.VLLM))
        if engine is EngineKind.VLLM:
            self.index.identify(WORKER, IDENTITY, shared=True)
        else:
            self.index.hint(WORKER, dynamo=dynamo, adapters={})

    def follow(self) -> None:
        events = self.cache.take_events()
        delta = self.index.apply(WORKER, EventBatch(0.0, events, 0))
        assert not delta.lossy
        assert not delta.skipped

    def reusable(self, tokens: Iterable[int], space: Namespace) -> int:
        prompt = Prompt(
            array("I", tokens).tobytes(),
            lora=space.lora[0] if space.lora else None,
            cache_salt=space.cache_salt,
            extra_key=space.extra_key,
            mm_items=space.mm_items,
        )
        path = space.lora[1] if space.lora else None
        match = self.index.match("m", prompt, [WORKER], path).get(WORKER)
        return 0 if match is None else match.reusable


def knows_every_hit(follower: Follower, script: list[Action]) -> None:
    workload = Workload(follower.cache)
    follower.follow()
    for action in script:
        workload.do(action)
        follower.follow()
        for tokens, space in workload.asked:
            hit = follower.cache.peek(list(tokens), space)
            assert follower.reusable(tokens, space) == hit, (action, tokens, space)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_index_equals_the_block_pool(block_size: int, overlap: bool) -> None:
    @given(actions(VLLM_SPACES))
    @settings(deadline=None, max_examples=20)
    def check(script: list[Action]) -> None:
        pool = BlockPool(1 + 96 // block_size, block_size, IDENTITY, overlap=overlap)
        knows_every_hit(Follower(pool, EngineKind.VLLM), script)

    check()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("page_size", "bigrams", "overlap"),
    [(1, False, False), (16, False, False), (1, True, False), (4, True, False), (1, False, True), (16, False, True)],
)
def test_index_equals_the_radix_cache(page_size: int, bigrams: bool, overlap: bool, policy: str) -> None:
    @given(actions(SALTED))
    @settings(deadline=None, max_examples=6)
    def check(script: list[Action]) -> None:
        cache = RadixCache(96, page_size, policy=policy, bigrams=bigrams, overlap=overlap)
        knows_every_hit(Follower(cache, EngineKind.SGLANG, eagle=bigrams), script)

    check()


@pytest.mark.parametrize("page_size", [1, 16])
def test_index_equals_the_radix_cache_in_namespaces_it_sees(page_size: int) -> None:
    @given(actions(DYNAMO_SPACES))
    @settings(deadline=None, max_examples=20)
    def check(script: list[Action]) -> None:
        cache = RadixCache(96, page_size, dynamo=True)
        knows_every_hit(Follower(cache, EngineKind.SGLANG, dynamo=True), script)

    check()


def test_copies_of_one_block_are_announced_each() -> None:
    """An index that takes the hashes for a set loses the block with its first copy."""
    pool = BlockPool(6, 4, IDENTITY)
    for _ in range(2):
        sequence = pool.start(list(range(8)))
        assert sequence is not None
        pool.finish(sequence)
    stores = [event for event in pool.take_events() if isinstance(event, BlockStored)]
    assert [len(event.block_hashes) for event in stores] == [2, 1]
    assert stores[0].block_hashes[1:] == stores[1].block_hashes
