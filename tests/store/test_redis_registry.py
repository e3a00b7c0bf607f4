"""What only the registry in Redis can meet: lost keys, long absence, records of others, a server that goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from store.keys import REGISTRY
from store.redis_registry import MAX_CHANGES
from store.state import Change, Deleted, Lost, Put, Reread
from tests.store.builders import instance
from tests.store.conftest import Replicas
from tests.store.test_registry import told
from tests.support.redis_server import RedisServer

SECOND_S = 1.0


async def quiet(changes: AsyncGenerator[Change, None]) -> None:
    assert await told(changes, 0) == []


async def test_a_replica_that_was_away_hears_what_it_missed(redis_replicas: Replicas) -> None:
    here, there = redis_replicas(), redis_replicas()
    await there.instances()
    for number in range(1_500):
        await here.delete_instance(str(number))
    changes = there.changes()
    heard = [await anext(changes) for _ in range(1_500)]
    assert heard == [Deleted(str(number)) for number in range(1_500)]


async def test_a_replica_that_was_away_too_long_is_told_to_reread(
    redis_replicas: Replicas, server: RedisServer
) -> None:
    here, there = redis_replicas(), redis_replicas()
    await there.instances()
    for name in "abcd":
        await here.put_instance(instance(name))
    server.command("XTRIM", REGISTRY.changes, "MAXLEN", 2)
    assert await told(there.changes(), 3) == [Reread(), Put(instance("c")), Put(instance("d"))]


async def test_the_stream_of_changes_is_bounded(redis_replicas: Replicas, server: RedisServer) -> None:
    store = redis_replicas()
    for start in range(0, MAX_CHANGES + 600, 100):
        await asyncio.gather(*(store.delete_instance(str(start + one)) for one in range(100)))
    assert MAX_CHANGES <= server.command("XLEN", REGISTRY.changes) < MAX_CHANGES + 300


@pytest.mark.parametrize("keys", [REGISTRY, [REGISTRY.instances]], ids=["everything", "the instances"])
async def test_a_lost_registry_is_noticed_and_can_be_made_anew(
    redis_replicas: Replicas, server: RedisServer, keys: list[str]
) -> None:
    here, there = redis_replicas(), redis_replicas()
    await here.put_instance(instance("a"))
    await here.put_instance(instance("b"))
    await there.instances()
    changes = there.changes()
    await quiet(changes)
    server.command("DEL", *keys)
    assert await asyncio.wait_for(anext(there.changes()), SECOND_S) == Lost()
    await quiet(there.changes())
    await here.put_instance(instance("a"))
    assert await told(there.changes(), 2) == [Put(instance("a")), Lost()]
    await there.put_instance(instance("a"))
    await there.put_instance(instance("b"))
    assert await here.instances() == {"a": instance("a"), "b": instance("b")}
    await quiet(there.changes())


async def test_a_lost_stream_of_changes_is_noticed_with_the_next_change(
    redis_replicas: Replicas, server: RedisServer
) -> None:
    here, there = redis_replicas(), redis_replicas()
    await here.put_instance(instance("a"))
    await there.instances()
    server.command("DEL", REGISTRY.changes)
    await here.put_instance(instance("a"))  # equal, but the stream has to be made anew
    assert await told(there.changes(), 2) == [Put(instance("a")), Lost()]
    assert await there.instances() == {"a": instance("a")}


async def test_deletions_made_after_a_loss_are_heard_before_it(redis_replicas: Replicas, server: RedisServer) -> None:
    here, there = redis_replicas(), redis_replicas()
    await here.put_instance(instance("a"))
    await there.instances()
    server.command("FLUSHALL")
    await here.delete_instance("a")
    assert await told(there.changes(), 2) == [Deleted("a"), Lost()]


async def test_a_record_that_cannot_be_read_is_left_out(redis_replicas: Replicas, server: RedisServer) -> None:
    here, there = redis_replicas(), redis_replicas()
    await here.put_instance(instance("a"))
    for value in ("", "0", "0{", '0{"source": "http"}', '0{"source": "x", "settings": {}}', "0[]"):
        server.command("HSET", REGISTRY.instances, "i:bad" + value, value)
    server.command("HSET", REGISTRY.instances, b"i:\xff", '0{"source": "http", "settings": {}}')
    assert await there.instances() == {"a": instance("a")}


async def test_a_change_of_an_unknown_kind_makes_a_replica_reread(
    redis_replicas: Replicas, server: RedisServer
) -> None:
    here, there = redis_replicas(), redis_replicas()
    await here.put_instance(instance("a"))
    await there.instances()
    newest = server.command("XREVRANGE", REGISTRY.changes, "+", "-", "COUNT", 1)[0][0].decode()
    epoch = newest.partition("-")[0]
    server.command("XADD", REGISTRY.changes, f"{epoch}-2", "r", "x", "o", "rename", "i", "a", "d", "b")
    server.command("XADD", REGISTRY.changes, f"{epoch}-3", "r", "x", "o", "put", "i", "a", "d", "0?")
    assert await told(there.changes(), 2) == [Reread(), Reread()]


async def test_the_registry_expires_with_the_last_replica(redis_replicas: Replicas, server: RedisServer) -> None:
    store = redis_replicas()
    await store.put_instance(instance("a"))
    for key in REGISTRY:
        assert 86_000_000 < server.command("PTTL", key) <= 86_400_000
        server.command("PEXPIRE", key, 1000)
    await store.touch([])
    assert all(server.command("PTTL", key) > 86_000_000 for key in REGISTRY)
