"""What only the store in memory has; its promises are in test_state.py and test_registry.py."""

from __future__ import annotations

from store.memory_state import MemoryState
from store.state import Deleted, Offer, Reread
from tests.store.builders import WORKER, entries, snapshot


async def test_nothing_is_shared_unasked() -> None:
    one, two = MemoryState(), MemoryState()
    await one.offer(snapshot(0))
    assert await two.load(WORKER) is None


async def test_what_was_loaded_does_not_change_later() -> None:
    store = MemoryState()
    assert await store.offer(snapshot(0)) is Offer.ACCEPTED
    await store.append(entries(1, 2))
    loaded = await store.load(WORKER)
    await store.append(entries(3, 4))
    assert loaded is not None
    assert loaded.entries == entries(1, 2)


async def test_changes_are_bounded() -> None:
    here = MemoryState()
    there = MemoryState(here)
    await there.instances()
    for number in range(10_005):
        await here.delete_instance(str(number))
    changes = there.changes()
    assert [await anext(changes), await anext(changes)] == [Reread(), Deleted("5")]


async def test_opening_touching_and_closing_do_nothing() -> None:
    store = MemoryState()
    await store.open()
    await store.touch([WORKER])
    await store.close()
    assert await store.load(WORKER) is None
