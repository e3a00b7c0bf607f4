"""What the write-behind leaves in the store: a state that the engine's batches give, up to its number."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from app.followed import AGAIN_MAX_S
from app.state_limits import WriterLimits
from app.state_writer import ADOPT_AGAIN_S, PROBE_S
from engine.stream import Batch
from index.worker import Trust
from store.memory_state import MemoryState
from store.state import Offer, Snapshot, StateError, StateStore
from store.state_url import open_store
from tests.support.redis_server import RedisServer
from tests.support.state_world import NEVER, WORKER, Outcome, Replica, Stores, World, load_fresh

SHORT = WriterLimits(snapshot_batches=3)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(params=["memory", "redis"])
async def stores(request: pytest.FixtureRequest) -> AsyncIterator[Stores]:
    """Each call is another replica's store over the same contents."""
    if request.param == "memory":
        first = MemoryState()
        yield lambda: MemoryState(first)
        return
    server: RedisServer = request.getfixturevalue("server")
    server.command("FLUSHALL")
    opened: list[StateStore] = []

    def another() -> StateStore:
        opened.append(open_store(server.url))
        return opened[-1]

    yield another
    for store in opened:
        await store.close()


async def one_writes(stores: Stores, batches: int, limits: WriterLimits = NEVER) -> tuple[World, Replica]:
    world = World(stores, limits)
    world.engine.publish(batches)
    replica = await world.replica()
    replica.take_all()
    await replica.writer.write()
    return world, replica


async def test_what_was_applied_is_stored_and_nothing_else(stores: Stores) -> None:
    world, replica = await one_writes(stores, 5)
    assert (await world.stored()).seq == 4
    world.engine.publish(20)
    replica.take(10)
    assert (await world.stored()).seq == 4
    await replica.writer.write()
    stored = await world.stored()
    assert (stored.seq, stored.origin_seq, stored.trust) == (14, 0, Trust.EXACT)
    assert stored.held == replica.held()
    assert await world.own.log_length(WORKER) == 10


async def test_after_so_many_batches_a_snapshot_replaces_the_log(stores: Stores) -> None:
    world, replica = await one_writes(stores, 1, SHORT)
    for _ in range(12):
        world.engine.publish()
        replica.take()
        await replica.writer.write()
        assert (await world.stored()).seq == replica.next_seq - 1
        assert await world.own.log_length(WORKER) <= 2 * SHORT.snapshot_batches


async def test_what_does_not_fit_into_the_queue_comes_as_a_snapshot(stores: Stores) -> None:
    world, replica = await one_writes(stores, 1, WriterLimits(queue_batches=5))
    world.engine.publish(6)
    replica.take_all()
    assert replica.metrics.state_errors.labels("overflow")._value.get() == 1
    world.engine.publish(3)
    replica.take_all()
    await replica.writer.write()
    assert (await world.stored()).seq == 9
    assert await world.own.log_length(WORKER) == 0
    world.engine.publish(3)
    replica.take_all()
    await replica.writer.write()
    assert (await world.stored()).seq == 12
    assert await world.own.log_length(WORKER) == 3


async def test_bytes_bound_the_queue_too(stores: Stores) -> None:
    world, replica = await one_writes(stores, 1, WriterLimits(queue_bytes=100))
    world.engine.publish(50)
    replica.take_all()
    assert replica.metrics.state_errors.labels("overflow")._value.get() == 1
    await replica.writer.write()
    assert (await world.stored()).seq == 50


@pytest.mark.parametrize("outcome", ["lost", "unanswered"])
async def test_what_failed_is_written_again(stores: Stores, outcome: Outcome) -> None:
    world, replica = await one_writes(stores, 3)
    for number in range(1, 4):
        world.engine.publish(2)
        replica.take_all()
        await failing(replica, outcome)
        await replica.writer.write()
        assert (await world.stored()).seq == 2 + 2 * number
    assert await world.own.log_length(WORKER) == 6


@pytest.mark.parametrize("outcome", ["lost", "unanswered"])
async def test_a_snapshot_that_failed_is_offered_again_but_not_at_once(stores: Stores, outcome: Outcome) -> None:
    world = World(stores)
    world.engine.publish(3)
    replica = await world.replica()
    replica.take_all()
    await failing(replica, outcome, raises=False)
    world.engine.publish(3)
    replica.take_all()
    await replica.writer.write()
    before = await load_fresh(world.own)
    assert (None if before is None else before.seq) == (None if outcome == "lost" else 2)
    world.now += AGAIN_MAX_S
    await replica.writer.write()
    assert (await world.stored()).seq == 5


async def failing(replica: Replica, outcome: Outcome, raises: bool = True) -> None:
    """One round whose only call to the store fails."""
    replica.gate.free = False
    task = asyncio.create_task(replica.writer.write())
    await replica.gate.end_next(outcome)
    if raises:
        with pytest.raises(StateError):
            await task
    else:
        await task
    replica.gate.free = True


async def test_two_replicas_write_one_copy(stores: Stores) -> None:
    world, first = await one_writes(stores, 3)
    second = await world.replica()
    for _ in range(10):
        world.engine.publish(3)
        first.take_all()
        second.take_all()
        await asyncio.gather(first.writer.write(), second.writer.write())
        assert (await world.stored()).seq == len(world.engine.payloads) - 1
    assert await world.own.log_length(WORKER) == 30
    assert first.held() == second.held() == (await world.stored()).held


async def test_a_replica_that_started_alone_keeps_what_another_stored(stores: Stores) -> None:
    world = World(stores)
    world.engine.publish(5)
    first, second = await world.replica(), await world.replica()
    first.take_all()
    second.take(3)
    await first.writer.write()
    await second.writer.write()
    assert (await world.stored()).seq == 4
    second.take_all()
    world.engine.publish(2)
    second.take_all()
    await second.writer.write()
    assert (await world.stored()).seq == 6
    assert await world.own.log_length(WORKER) == 2
    assert second.adoptions == []


async def test_who_knows_less_of_the_history_takes_over_what_is_stored(stores: Stores) -> None:
    world, knowing = await one_writes(stores, 10)
    late = await world.replica()
    world.engine.publish(5)
    late.lose(12)
    late.take_all()
    await late.writer.write()
    assert late.adoptions == [], "what is stored ends before the hole"
    knowing.take_all()
    await knowing.writer.write()
    world.now += AGAIN_MAX_S
    await late.writer.write()
    assert late.adoptions == [WORKER]
    await late.start()
    late.take_all()
    assert late.held() == knowing.held()
    assert late.tracked.trust is Trust.EXACT
    world.engine.publish(1)
    for replica in (late, knowing):
        replica.take_all()
        await replica.writer.write()
    stored = await world.stored()
    assert (stored.seq, stored.origin_seq) == (15, 0)
    assert await world.own.log_length(WORKER) == 6


async def test_who_knows_more_but_is_behind_adopts_nothing_and_wins_when_it_is_as_far(stores: Stores) -> None:
    world = World(stores)
    world.engine.publish(10)
    knowing, late = await world.replica(), await world.replica(first_seq=5)
    late.take_all()
    await late.writer.write()
    knowing.take(9)
    await knowing.writer.write()
    assert knowing.adoptions == []
    assert (await world.loaded()).origin_seq == 5
    knowing.take_all()
    world.now += AGAIN_MAX_S
    await knowing.writer.write()
    stored = await world.stored()
    assert (stored.seq, stored.origin_seq) == (9, 0)
    world.engine.publish(1)
    late.take_all()
    await late.writer.write()
    world.now += AGAIN_MAX_S
    await late.writer.write()
    assert late.adoptions == [WORKER]


async def test_a_better_state_is_taken_over_seldom_and_snapshots_are_not_offered_all_the_time(stores: Stores) -> None:
    world, _ = await one_writes(stores, 10)
    late = await world.replica()
    late.lose(10)
    world.engine.publish(1)
    late.take_all()
    offers = 0
    original = late.gate.offer

    async def counted(snapshot: Snapshot) -> Offer:
        nonlocal offers
        offers += 1
        return await original(snapshot)

    late.gate.offer = counted  # type: ignore[method-assign]
    for _ in range(int(ADOPT_AGAIN_S * 9)):
        world.now += 0.1
        await late.writer.write()
    assert late.adoptions == [WORKER]
    assert offers < 12


async def test_a_new_process_is_a_new_lineage(stores: Stores) -> None:
    world, replica = await one_writes(stores, 10)
    world.engine.restart()
    world.engine.publish(2)
    replica.take_all()
    await replica.writer.write()
    stored = await world.stored()
    assert (stored.seq, stored.trust) == (1, Trust.EXACT)
    assert await world.own.log_length(WORKER) == 0


async def test_a_replica_that_still_follows_the_former_process_does_not_bring_it_back(stores: Stores) -> None:
    world, behind = await one_writes(stores, 10)
    ahead = await world.replica()
    world.engine.publish(4)
    former = list(world.engine.payloads)
    world.engine.restart()
    world.engine.publish(2)
    ahead.take_all()
    await ahead.writer.write()
    world.engine.processes.append(former)  # what it is told last is the former process's
    behind.process = 2
    behind.take_all()
    world.engine.processes.pop()
    for _ in range(5):
        world.now += 1.0
        await behind.writer.write()
    assert behind.adoptions == [WORKER]
    assert (await world.stored()).seq == 1


async def test_an_engine_whose_clock_went_back_is_stored_all_the_same(stores: Stores) -> None:
    world, replica = await one_writes(stores, 10)
    world.engine.restart()
    world.engine.clock_s -= 3600
    world.engine.publish(3)
    replica.take_all()
    for _ in range(4):
        world.now += AGAIN_MAX_S
        await replica.writer.write()
        if replica.adoptions:
            await replica.start()
            replica.take_all()
    assert (await world.stored()).origin_ts_ms < 1_699_999_999_000
    world.engine.publish(3)
    replica.take_all()
    await replica.writer.write()
    assert (await world.stored()).seq == 5


async def test_two_processes_without_a_time_do_not_share_a_lineage(stores: Stores) -> None:
    world = World(stores)
    world.engine.payloads.append(b"one")
    replica = await world.replica()
    replica.take_all()
    await replica.writer.write()
    first = await load_fresh(world.own)
    world.engine.restart()
    world.engine.payloads.append(b"other")
    world.engine.publish(1)
    replica.take_all()
    await replica.writer.write()
    second = await load_fresh(world.own)
    assert first is not None
    assert second is not None
    assert (first.origin_seq, second.origin_seq) == (0, 0)
    assert first.origin_ts_ms != second.origin_ts_ms
    assert second.held == replica.held()


async def test_a_batch_that_cannot_be_read_is_stored_as_nothing_and_costs_trust(stores: Stores) -> None:
    world, replica = await one_writes(stores, 5)
    held = replica.held()
    world.engine.payloads.append(b"\xc1")
    replica.take_all()
    await replica.writer.write()
    stored = await load_fresh(world.own)
    assert stored is not None
    assert (stored.seq, stored.trust, stored.held) == (5, Trust.PARTIAL, held)


async def test_a_lost_state_is_written_again_with_the_next_batch(stores: Stores) -> None:
    world, replica = await one_writes(stores, 5)
    await world.own.forget(WORKER)
    world.engine.publish(1)
    replica.take_all()
    await replica.writer.write()
    assert (await world.stored()).seq == 5


@pytest.mark.parametrize("log", [0, 4])
async def test_a_lost_state_is_written_again_without_any_batch(stores: Stores, log: int) -> None:
    world, replica = await one_writes(stores, 5)
    world.engine.publish(log)
    replica.take_all()
    await replica.writer.write()
    await world.own.forget(WORKER)
    await replica.writer.write()
    assert await load_fresh(world.own) is None
    world.now += PROBE_S
    await replica.writer.write()
    assert (await world.stored()).seq == 4 + log
    assert await world.own.log_length(WORKER) == 0


async def test_looking_after_what_is_stored_changes_nothing_when_it_is_there(stores: Stores) -> None:
    world, replica = await one_writes(stores, 5)
    other = await world.replica()
    world.engine.publish(2)
    replica.take_all()
    await replica.writer.write()
    before = await world.own.load(WORKER)
    for _ in range(3):
        world.now += PROBE_S
        await replica.writer.write()
        await other.writer.write()
    assert await world.own.load(WORKER) == before


async def test_one_worker_that_cannot_be_stored_does_not_keep_others_waiting(stores: Stores) -> None:
    world, replica = await one_writes(stores, 2)
    await replica.start()
    replica.lose(2**53)
    replica.next_seq = 2**53
    world.engine.publish(1)
    replica.tell(Batch(2**53, world.engine.payloads[-1], False))
    for _ in range(3):
        world.now += AGAIN_MAX_S
        await replica.writer.write()
    assert replica.metrics.state_errors.labels("offer")._value.get() == 3


async def test_what_is_discarded_leaves_the_store_and_stays_away(stores: Stores) -> None:
    world, replica = await one_writes(stores, 5)
    world.engine.publish(2)
    replica.take_all()
    replica.writer.discard(WORKER)
    await replica.writer.write()
    assert await world.own.load(WORKER) is None
    assert await world.own.log_length(WORKER) == 0


async def test_an_instance_deleted_while_its_snapshot_is_under_way_leaves_nothing(stores: Stores) -> None:
    world = World(stores)
    world.engine.publish(2)
    replica = await world.replica()
    replica.take_all()
    replica.gate.free = False
    task = asyncio.create_task(replica.writer.write())
    await replica.gate.arrival()
    replica.writer.discard(WORKER)
    await world.own.forget(WORKER)
    replica.gate.free = True
    replica.gate.tell("done")
    await task
    await replica.writer.write()
    assert await world.own.load(WORKER) is None


async def test_nothing_is_offered_while_a_better_state_is_loaded(stores: Stores) -> None:
    world, _ = await one_writes(stores, 10)
    late = await world.replica()
    late.lose(10)
    world.engine.publish(2)
    late.take(1)
    late.writer.began(WORKER)
    world.now += AGAIN_MAX_S
    await world.own.forget(WORKER)
    await late.writer.write()
    assert await world.own.load(WORKER) is None


async def test_a_fingerprint_learnt_late_is_saved_with_the_next_batch(stores: Stores) -> None:
    world, replica = await one_writes(stores, 2)
    replica.writer.knows_process(WORKER, "1700.5")
    world.engine.publish(1)
    replica.take_all()
    await replica.writer.write()
    stored = await world.own.load(WORKER)
    assert stored is not None
    assert (stored.snapshot.fingerprint, stored.snapshot.seq) == ("1700.5", 2)
    world.engine.publish(1)
    replica.take_all()
    await replica.writer.write()
    assert await world.own.log_length(WORKER) == 1


async def test_the_task_goes_on_after_errors(stores: Stores) -> None:
    world, replica = await one_writes(stores, 2)
    task = asyncio.create_task(replica.writer.run())
    world.engine.publish(3)
    replica.gate.free = False
    replica.take_all()
    outcomes: list[Outcome] = ["lost", "unanswered", "lost", "done"]
    for outcome in outcomes:
        async with asyncio.timeout(5):
            await replica.gate.end_next(outcome)
    replica.gate.free = True
    async with asyncio.timeout(5):
        while (await world.stored()).seq != 4:
            replica.gate.tell("done")
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert replica.metrics.state_errors.labels("append")._value.get() == 3


async def test_what_waits_is_written_when_the_process_ends(stores: Stores) -> None:
    world, replica = await one_writes(stores, 2)
    world.engine.publish(3)
    replica.take_all()
    await replica.writer.drain(2.0)
    assert (await world.stored()).seq == 4


@pytest.mark.parametrize("outcome", ["cut off", "lost"])
async def test_a_snapshot_that_is_not_taken_when_the_process_ends_is_offered_once_more(
    stores: Stores, outcome: str
) -> None:
    """Else what came after the last one is lost: a failed offer is repeated later, and there is no later."""
    world, replica = await one_writes(stores, 2)
    world.engine.publish(3)
    replica.take_all()
    replica.writer.knows_process(WORKER, "1700.5")
    world.engine.publish(1)
    replica.take_all()  # of a process that the stored snapshot does not name: another one is due
    replica.gate.free = False
    task = asyncio.create_task(replica.writer.run())
    async with asyncio.timeout(5):
        await replica.gate.end_next("done")  # the entries
        await replica.gate.arrival()
        if outcome == "lost":
            await replica.gate.end_next("lost")
            await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    replica.gate.free = True
    await replica.writer.drain(2.0)
    stored = await world.stored()
    assert (stored.seq, stored.held) == (5, replica.held())
