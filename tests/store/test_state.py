"""The promises of `StateStore`, kept by both kinds."""

from __future__ import annotations

import asyncio

import pytest

from index.worker import Worker
from store.state import MAX_NUMBER, STALE_MS, Lineage, Offer, Snapshot, StateError, StateStore
from tests.store.builders import T0, WORKER, entries, entry, snapshot
from tests.store.conftest import Replicas

OTHER_WORKER = Worker("vllm-0", 1)
LATER = Lineage(5, T0 + 50)


async def test_nothing_is_stored_at_first(store: StateStore) -> None:
    await store.open()
    assert await store.load(WORKER) is None
    assert await store.log_length(WORKER) == 0
    assert await store.workers() == []
    assert await store.append([]) == []


async def test_what_was_stored_is_loaded(store: StateStore) -> None:
    stored = snapshot(3, fingerprint="1700.5 é", body=bytes(range(256)))
    await store.offer(stored)
    assert await store.append(entries(4, 6)) == [True, True, True]
    loaded = await store.load(WORKER)
    assert loaded is not None
    assert loaded.snapshot == stored
    assert loaded.entries == entries(4, 6)
    assert await store.log_length(WORKER) == 3


async def test_bodies_may_be_empty(store: StateStore) -> None:
    await store.offer(snapshot(0, body=b""))
    await store.append([entry(1, body=b"")])
    loaded = await store.load(WORKER)
    assert loaded is not None
    assert (loaded.snapshot.body, loaded.entries[0].body) == (b"", b"")


async def test_an_entry_is_written_once(store: StateStore) -> None:
    await store.offer(snapshot(0))
    assert await store.append(entries(1, 2)) == [True, True]
    assert await store.append(entries(1, 3)) == [False, False, True]
    assert await store.append(entries(0, 0)) == [False]
    assert await store.log_length(WORKER) == 3


async def test_an_entry_without_a_snapshot_does_not_join(store: StateStore) -> None:
    assert await store.append(entries(1, 2)) == [None, None]
    assert await store.log_length(WORKER) == 0


async def test_an_entry_of_another_lineage_does_not_join(store: StateStore) -> None:
    await store.offer(snapshot(5))
    assert await store.append([entry(6, LATER)]) == [None]
    assert await store.append([entry(6, LATER), entry(6)]) == [None, True]


async def test_an_entry_beyond_a_hole_does_not_join(store: StateStore) -> None:
    await store.offer(snapshot(0))
    assert await store.append([entry(1), entry(3), entry(4)]) == [True, None, None]
    assert await store.append(entries(2, 4)) == [True, True, True]


async def test_an_entry_from_before_the_one_before_does_not_join(store: StateStore) -> None:
    await store.offer(snapshot(0))
    await store.append([entry(1)])
    assert await store.append([entry(2)._replace(ts_ms=T0 + 9)]) == [None]
    assert await store.append([entry(2)._replace(ts_ms=T0 + 10)]) == [True]


async def test_numbers_beyond_the_limit_are_refused(store: StateStore) -> None:
    await store.offer(snapshot(MAX_NUMBER - 1, ts_ms=T0))
    last, beyond = (entry(0)._replace(seq=MAX_NUMBER + add, ts_ms=T0) for add in (0, 1))
    assert await store.append([last, beyond]) == [True, None]
    with pytest.raises(StateError) as caught:
        await store.offer(snapshot(MAX_NUMBER + 1, ts_ms=T0))
    assert (caught.value.op, caught.value.reason) == ("offer", "size")


async def test_answers_are_in_the_order_of_the_entries(store: StateStore) -> None:
    await store.offer(snapshot(0))
    mixed = [entry(1, worker=OTHER_WORKER), entry(1), entry(2, worker=OTHER_WORKER), entry(1), entry(2)]
    assert await store.append(mixed) == [None, True, None, False, True]


async def test_workers_do_not_see_each_other(store: StateStore) -> None:
    await store.offer(snapshot(0))
    await store.offer(snapshot(7, worker=OTHER_WORKER))
    await store.append([entry(1), entry(8, worker=OTHER_WORKER)])
    assert await store.workers() == [WORKER, OTHER_WORKER]
    await store.forget(WORKER)
    assert await store.load(WORKER) is None
    assert await store.workers() == [OTHER_WORKER]
    assert await store.log_length(OTHER_WORKER) == 1


async def test_a_forgotten_worker_takes_no_entries(store: StateStore) -> None:
    await store.offer(snapshot(0))
    await store.forget(WORKER)
    assert await store.append(entries(1, 1)) == [None]


async def test_replicas_that_append_the_same_leave_one_copy_in_order(replicas: Replicas) -> None:
    first, second = replicas(), replicas()
    await first.offer(snapshot(0))

    async def append_all(store: StateStore, step: int) -> list[bool | None]:
        answers = []
        for start in range(1, 301, step):
            answers += await store.append(entries(start, start + step - 1))
            await asyncio.sleep(0)
        return answers

    one, two = await asyncio.gather(append_all(first, 3), append_all(second, 4))
    assert [sorted(map(str, pair)) for pair in zip(one, two, strict=True)] == [["False", "True"]] * 300
    loaded = await second.load(WORKER)
    assert loaded is not None
    assert loaded.entries == entries(1, 300)


async def test_a_replica_that_is_behind_is_not_dirty(replicas: Replicas) -> None:
    ahead, behind = replicas(), replicas()
    await ahead.offer(snapshot(0))
    await ahead.append(entries(1, 5))
    await ahead.offer(snapshot(5))
    assert await behind.append(entries(1, 6)) == [False] * 5 + [True]


# Offers: one test per rule


async def offers(store: StateStore, *snapshots: Snapshot) -> list[Offer]:
    return [await store.offer(one) for one in snapshots]


async def test_the_first_snapshot_is_accepted(store: StateStore) -> None:
    assert await store.offer(snapshot(3)) is Offer.ACCEPTED


async def test_of_one_lineage_the_newer_snapshot_is_kept(store: StateStore) -> None:
    answers = await offers(store, snapshot(3), snapshot(3), snapshot(2), snapshot(4))
    assert answers == [Offer.ACCEPTED, Offer.KEPT, Offer.KEPT, Offer.ACCEPTED]


async def test_a_newer_snapshot_shortens_the_log_to_what_follows_it(store: StateStore) -> None:
    await store.offer(snapshot(0))
    await store.append(entries(1, 9))
    assert await store.offer(snapshot(6)) is Offer.ACCEPTED
    loaded = await store.load(WORKER)
    assert loaded is not None
    assert (loaded.snapshot, loaded.entries) == (snapshot(6), entries(7, 9))
    assert await store.log_length(WORKER) == 3
    assert await store.append([entry(10)]) == [True]


async def test_a_snapshot_at_the_end_of_the_log_empties_it(store: StateStore) -> None:
    await store.offer(snapshot(0))
    await store.append(entries(1, 9))
    await store.offer(snapshot(9))
    assert await store.log_length(WORKER) == 0
    assert await store.append([entry(10)]) == [True]


async def test_a_snapshot_beyond_the_log_empties_it(store: StateStore) -> None:
    await store.offer(snapshot(0))
    await store.append(entries(1, 3))
    await store.offer(snapshot(9))
    assert await store.log_length(WORKER) == 0
    assert await store.append([entry(4), entry(9), entry(10)]) == [False, False, True]


async def test_a_new_process_that_counts_anew_replaces_the_old(store: StateStore) -> None:
    await store.offer(snapshot(0))
    await store.append(entries(1, 9))
    new = snapshot(2, Lineage(0, T0 + 5000), ts_ms=T0 + 5020)
    assert await store.offer(new) is Offer.ACCEPTED
    loaded = await store.load(WORKER)
    assert loaded is not None
    assert (loaded.snapshot, loaded.entries) == (new, [])
    assert await store.log_length(WORKER) == 0


async def test_a_new_process_known_by_its_fingerprint_replaces_the_old(store: StateStore) -> None:
    new = snapshot(700, Lineage(600, T0 + 5000), ts_ms=T0 + 5020, fingerprint="new")
    assert await offers(store, snapshot(9, fingerprint="old"), new) == [Offer.ACCEPTED] * 2


@pytest.mark.parametrize(("stored", "offered"), [(None, "new"), ("old", None), ("same", "same")])
async def test_only_two_known_fingerprints_tell_processes_apart(
    store: StateStore, stored: str | None, offered: str | None
) -> None:
    new = snapshot(700, Lineage(600, T0 + 5000), ts_ms=T0 + 5020, fingerprint=offered)
    assert await offers(store, snapshot(9, fingerprint=stored), new) == [Offer.ACCEPTED, Offer.BETTER]


async def test_the_old_process_does_not_come_back(store: StateStore) -> None:
    new = snapshot(2, Lineage(0, T0 + 5000), ts_ms=T0 + 5020, fingerprint="new")
    old = snapshot(400, fingerprint="old")
    assert await offers(store, new, old) == [Offer.ACCEPTED, Offer.BETTER]


async def test_an_earlier_origin_that_is_as_far_replaces_a_later_one(store: StateStore) -> None:
    assert await offers(store, snapshot(9, LATER), snapshot(9)) == [Offer.ACCEPTED] * 2


async def test_an_earlier_origin_that_is_behind_waits(store: StateStore) -> None:
    assert await offers(store, snapshot(9, LATER), snapshot(8)) == [Offer.ACCEPTED, Offer.BETTER]


async def test_how_far_is_measured_at_the_end_of_the_log(store: StateStore) -> None:
    await store.offer(snapshot(9, LATER))
    await store.append(entries(10, 12, LATER))
    assert await offers(store, snapshot(11), snapshot(12)) == [Offer.BETTER, Offer.ACCEPTED]


async def test_a_later_origin_gives_way(store: StateStore) -> None:
    assert await offers(store, snapshot(9), snapshot(20, LATER)) == [Offer.ACCEPTED, Offer.BETTER]


async def test_a_later_origin_replaces_one_that_nobody_writes_any_more(store: StateStore) -> None:
    await store.offer(snapshot(9))
    await store.append([entry(10)])
    just_alive = snapshot(20, LATER, ts_ms=T0 + 100 + STALE_MS)
    stale = just_alive._replace(ts_ms=just_alive.ts_ms + 1)
    assert await offers(store, just_alive, stale) == [Offer.BETTER, Offer.ACCEPTED]


async def test_what_was_kept_or_better_changes_nothing(store: StateStore) -> None:
    await store.offer(snapshot(9))
    await store.append([entry(10)])
    before = await store.load(WORKER)
    await offers(store, snapshot(8, body=b"other"), snapshot(20, LATER))
    assert await store.load(WORKER) == before
