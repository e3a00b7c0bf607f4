"""The store in a real Redis Cluster: keys spread over three nodes, slots that move, masters that hang or fail."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from index.worker import Worker
from store.keys import REGISTRY, worker_keys
from store.state import Deleted, Offer, Put, StateError, StateLimits, StateStore
from store.state_url import open_store
from tests.store.builders import entries, entry, instance, snapshot
from tests.store.test_registry import told
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_server import RedisServer, wait_until

LIMITS = StateLimits(poll_s=0.02)
WORKERS = [Worker(f"vllm {number}", number % 2) for number in range(30)]


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[RedisCluster]:
    with RedisCluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: RedisCluster) -> RedisCluster:
    for node in shared_cluster.masters:
        node.command("FLUSHALL")
        node.command("SCRIPT", "FLUSH")
    return shared_cluster


@pytest.fixture
async def store(cluster: RedisCluster) -> AsyncIterator[StateStore]:
    store = open_store(cluster.url, LIMITS)
    yield store
    await store.close()


def workers_of(cluster: RedisCluster, node: RedisServer) -> list[Worker]:
    return [worker for worker in WORKERS if cluster.owner(worker_keys(worker).log) is node]


async def offer_all(store: StateStore, seq: int = 0) -> None:
    answers = await asyncio.gather(*(store.offer(snapshot(seq, worker=worker)) for worker in WORKERS))
    assert answers == [Offer.ACCEPTED] * len(WORKERS)


async def append_all(store: StateStore, seq: int) -> list[bool | None]:
    return await store.append([entry(seq, worker=worker) for worker in WORKERS])


async def until_written(store: StateStore, seq: int, limit_s: float = 10) -> None:
    """As a writer does: again after an error, a snapshot where an entry does not join."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            answers = await append_all(store, seq)
            for worker, answer in zip(WORKERS, answers, strict=True):
                if answer is None:
                    await store.offer(snapshot(seq, worker=worker))
        except StateError:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
        else:
            return


async def reached(store: StateStore, worker: Worker) -> int | None:
    stored = await store.load(worker)
    return None if stored is None else stored.snapshot.seq + len(stored.entries)


async def test_workers_spread_over_the_nodes_in_one_call(store: StateStore, cluster: RedisCluster) -> None:
    await store.open()
    await offer_all(store)
    assert await append_all(store, 1) == [True] * len(WORKERS)
    assert await append_all(store, 1) == [False] * len(WORKERS)
    assert await append_all(store, 3) == [None] * len(WORKERS)
    assert all(len(workers_of(cluster, node)) > 3 for node in cluster.masters)
    for worker in WORKERS:
        stored = await store.load(worker)
        assert stored is not None
        assert (stored.snapshot, stored.entries) == (snapshot(0, worker=worker), [entry(1, worker=worker)])
    await store.touch(WORKERS)
    assert await store.workers() == sorted(WORKERS)
    await store.forget(WORKERS[0])
    assert await store.workers() == sorted(WORKERS[1:])


async def test_two_replicas_leave_one_copy(store: StateStore, cluster: RedisCluster) -> None:
    other = open_store(cluster.url, LIMITS)
    await offer_all(store)
    batches = [entry(seq, worker=worker) for seq in range(1, 11) for worker in WORKERS]
    one, two = await asyncio.gather(store.append(batches), other.append(batches))
    assert [bool(a) + bool(b) for a, b in zip(one, two, strict=True)] == [1] * len(batches)
    for worker in WORKERS:
        stored = await other.load(worker)
        assert stored is not None
        assert stored.entries == entries(1, 10, worker=worker)
    await other.close()


async def test_the_registry_is_shared(store: StateStore, cluster: RedisCluster) -> None:
    other = open_store(cluster.url, LIMITS)
    await other.instances()
    await store.put_instance(instance("a"))
    await store.delete_instance("b")
    assert await told(other.changes(), 2) == [Put(instance("a")), Deleted("b")]
    assert await other.instances() == {"a": instance("a")}
    await other.close()


async def test_moved_slots_are_followed(store: StateStore, cluster: RedisCluster) -> None:
    await store.instances()
    await offer_all(store)
    await append_all(store, 1)
    for key in (worker_keys(WORKERS[0]).log, REGISTRY.changes):
        source = cluster.owner(key)
        target = next(node for node in cluster.masters if node is not source)
        cluster.move_slot(key, target)
        assert cluster.owner(key) is target
    assert await append_all(store, 2) == [True] * len(WORKERS)
    assert await reached(store, WORKERS[0]) == 2
    assert await store.offer(snapshot(2, worker=WORKERS[0])) is Offer.ACCEPTED
    await store.put_instance(instance("a"))
    assert list(await store.instances()) == ["a"]


async def test_a_slot_on_its_way_delays_only_its_workers(store: StateStore, cluster: RedisCluster) -> None:
    await offer_all(store)
    worker = WORKERS[0]
    key = worker_keys(worker).log
    source = cluster.owner(key)
    target = next(node for node in cluster.masters if node is not source)
    cluster.begin_move(key, target)
    assert await append_all(store, 1) == [None if one == worker else True for one in WORKERS]
    with pytest.raises(StateError) as caught:
        await store.offer(snapshot(1, worker=worker))
    assert caught.value.reason == "cluster"
    cluster.move_keys(key, target)
    cluster.end_move(key, target)
    assert await append_all(store, 1) == [one == worker for one in WORKERS]
    assert await append_all(store, 2) == [True] * len(WORKERS)


async def test_a_hanging_node_costs_the_limit_and_loses_nothing(cluster: RedisCluster) -> None:
    store = open_store(cluster.url, StateLimits(call_s=1.0, load_s=1.0))
    await offer_all(store)
    node = cluster.masters[1]
    node.pause()
    started = time.monotonic()
    with pytest.raises(StateError) as caught:
        await append_all(store, 1)
    assert caught.value.reason == "timeout"
    assert time.monotonic() - started < 4.0
    node.resume()
    await until_written(store, 1)
    for worker in WORKERS:
        assert await reached(store, worker) == 1
    await store.close()


async def test_one_flushed_node_makes_only_its_workers_dirty(store: StateStore, cluster: RedisCluster) -> None:
    await offer_all(store)
    node = cluster.masters[0]
    node.command("FLUSHALL")
    dirty = workers_of(cluster, node)
    answers = await append_all(store, 1)
    assert [worker for worker, answer in zip(WORKERS, answers, strict=True) if answer is None] == dirty
    assert dirty


async def test_a_full_node_does_not_hold_up_the_others(store: StateStore, cluster: RedisCluster) -> None:
    await offer_all(store)
    node = cluster.masters[0]
    node.command("CONFIG", "SET", "maxmemory", 1)
    try:
        full = workers_of(cluster, node)
        answers = await append_all(store, 1)
        assert answers == [None if worker in full else True for worker in WORKERS]
        with pytest.raises(StateError) as caught:
            await store.offer(snapshot(1, worker=full[0]))
        assert caught.value.reason == "oom"
    finally:
        node.command("CONFIG", "SET", "maxmemory", 0)
    assert await append_all(store, 1) == [worker in full for worker in WORKERS]


async def test_a_failed_master_is_replaced_by_its_replica() -> None:
    with RedisCluster(replicas=1) as cluster:
        store = open_store(cluster.url, LIMITS)
        await offer_all(store)
        await append_all(store, 1)
        moved = workers_of(cluster, cluster.masters[0])
        replica = cluster.nodes[3]
        wait_until(lambda: replica.command("DBSIZE") == cluster.masters[0].command("DBSIZE"))
        cluster.masters[0].kill()
        cluster.fail_over()
        await until_written(store, 2)
        for worker in WORKERS:
            assert await reached(store, worker) == 2
        assert moved
        assert await append_all(store, 3) == [True] * len(WORKERS)
        await store.close()
