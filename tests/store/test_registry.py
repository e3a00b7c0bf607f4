"""The registry of instances and its changes, in both kinds of store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from store.state import Change, Deleted, Drained, Put, Reread, StateStore
from tests.store.builders import instance
from tests.store.conftest import Replicas

ODD_NAMES = ["a", "{registry}", "epoch", "i:a", "ein ärger/☃", "*"]


async def told(changes: AsyncGenerator[Change, None], count: int) -> list[Change]:
    """The next changes, and no more of them for a while."""
    found = [await asyncio.wait_for(anext(changes), 5) for _ in range(count)]
    more = asyncio.create_task(anext(changes))
    _, waiting = await asyncio.wait([more], timeout=0.1)
    more.cancel()
    await asyncio.gather(more, return_exceptions=True)
    assert waiting, f"also told: {more}"
    return found


async def test_the_registry_is_empty_at_first(store: StateStore) -> None:
    assert await store.instances() == {}


async def test_instances_are_kept(replicas: Replicas) -> None:
    here, there = replicas(), replicas()
    for name in ODD_NAMES:
        await here.put_instance(instance(name))
    from_file = instance("file")._replace(source="file", draining=True)
    await here.put_instance(from_file)
    expected = {name: instance(name) for name in ODD_NAMES} | {"file": from_file}
    assert await here.instances() == await there.instances() == expected


async def test_settings_can_change_and_the_draining_flag_stays(store: StateStore) -> None:
    await store.put_instance(instance("a"))
    await store.set_draining("a", True)
    await store.put_instance(instance("a", weight=2.0))
    assert await store.instances() == {"a": instance("a", weight=2.0, draining=True)}
    await store.set_draining("a", False)
    assert await store.instances() == {"a": instance("a", weight=2.0)}


async def test_a_deleted_instance_is_gone_with_its_flag(store: StateStore) -> None:
    await store.put_instance(instance("a", draining=True))
    await store.delete_instance("a")
    assert await store.instances() == {}
    await store.put_instance(instance("a"))
    assert await store.instances() == {"a": instance("a")}


async def test_draining_an_instance_that_is_not_registered_is_told_but_not_kept(replicas: Replicas) -> None:
    here, there = replicas(), replicas()
    await there.instances()
    await here.set_draining("a", True)
    assert await here.instances() == {}
    assert await told(there.changes(), 1) == [Drained("a", True)]


async def test_other_replicas_are_told_in_order(replicas: Replicas) -> None:
    here, there = replicas(), replicas()
    await there.instances()
    await here.put_instance(instance("a"))
    await here.set_draining("a", True)
    await here.set_draining("a", False)
    await here.delete_instance("a")
    await here.delete_instance("from a file")
    expected = [Put(instance("a")), Drained("a", True), Drained("a", False), Deleted("a"), Deleted("from a file")]
    assert await told(there.changes(), 5) == expected


async def test_a_replica_is_not_told_its_own_changes(replicas: Replicas) -> None:
    here, there = replicas(), replicas()
    await here.instances()
    await here.put_instance(instance("a"))
    await there.put_instance(instance("b"))
    await here.delete_instance("a")
    assert await told(here.changes(), 1) == [Put(instance("b"))]


async def test_what_changes_nothing_is_not_told(replicas: Replicas) -> None:
    here, there = replicas(), replicas()
    await here.put_instance(instance("a"))
    await there.instances()
    await here.put_instance(instance("a"))
    await here.put_instance(instance("a", draining=True))
    await here.set_draining("a", False)
    assert await told(there.changes(), 0) == []


async def test_reading_the_whole_passes_over_what_it_holds(replicas: Replicas) -> None:
    here, there = replicas(), replicas()
    await there.instances()
    await here.put_instance(instance("a"))
    assert list(await there.instances()) == ["a"]
    await here.put_instance(instance("b"))
    assert await told(there.changes(), 1) == [Put(instance("b"))]


async def test_changes_go_on_where_an_iteration_ended(replicas: Replicas) -> None:
    here, there = replicas(), replicas()
    await there.instances()
    for name in "abc":
        await here.put_instance(instance(name))
    first = there.changes()
    assert await anext(first) == Put(instance("a"))
    await first.aclose()
    assert await told(there.changes(), 2) == [Put(instance("b")), Put(instance("c"))]


async def test_changes_without_the_whole_begin_with_a_reread(replicas: Replicas) -> None:
    here, there = replicas(), replicas()
    await here.put_instance(instance("a"))
    changes = there.changes()
    assert await anext(changes) == Reread()
    await here.put_instance(instance("b"))
    assert await told(changes, 1) == [Put(instance("b"))]


async def test_changes_come_while_they_are_waited_for(replicas: Replicas) -> None:
    here, there = replicas(), replicas()
    await there.instances()
    waiting = asyncio.create_task(anext(there.changes()))
    await asyncio.sleep(0.05)
    await here.put_instance(instance("a"))
    assert await asyncio.wait_for(waiting, 5) == Put(instance("a"))


@pytest.mark.parametrize("replica_count", [3])
async def test_replicas_that_change_at_once_all_hear_the_same(replicas: Replicas, replica_count: int) -> None:
    watcher, *writers = (replicas() for _ in range(replica_count + 1))
    await watcher.instances()

    async def write(writer: StateStore, number: int) -> None:
        for step in range(20):
            await writer.put_instance(instance(f"{number}-{step}"))

    await asyncio.gather(*(write(writer, number) for number, writer in enumerate(writers)))
    changes = watcher.changes()
    heard = [await asyncio.wait_for(anext(changes), 5) for _ in range(20 * replica_count)]
    ids = [change.instance.id for change in heard if isinstance(change, Put)]
    assert sorted(ids) == sorted(await watcher.instances())
    for number in range(replica_count):
        mine = [id for id in ids if id.startswith(f"{number}-")]
        assert mine == [f"{number}-{step}" for step in range(20)]
