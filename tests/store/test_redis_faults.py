"""A Redis that hangs, dies, forgets, is full, locked or read-only: calls end in time, and all is well afterwards."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress

import pytest
import redis

from index.worker import Worker
from store.keys import worker_keys
from store.state import Lost, Offer, Put, StateError, StateLimits, StateStore
from store.state_url import open_store
from tests.store.builders import T0, WORKER, entries, entry, instance, snapshot
from tests.store.test_registry import told
from tests.support.redis_server import Options, RedisServer, wait_until

LIMIT_S = 0.4
SLACK_S = 1.0
"""For a busy machine."""
LIMITS = StateLimits(call_s=LIMIT_S, load_s=LIMIT_S, poll_s=0.02)
SECRET = "s3cret-pass/word"


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
async def store(server: RedisServer) -> AsyncIterator[StateStore]:
    store = open_store(server.url, LIMITS)
    yield store
    await store.close()


def every_call(store: StateStore) -> dict[str, Callable[[], Awaitable[object]]]:
    return {
        "open": store.open,
        "load": lambda: store.load(WORKER),
        "append": lambda: store.append(entries(5, 8)),
        "offer": lambda: store.offer(snapshot(4)),
        "log_length": lambda: store.log_length(WORKER),
        "forget": lambda: store.forget(Worker("nobody", 0)),
        "touch": lambda: store.touch([WORKER]),
        "workers": store.workers,
        "registry": store.instances,
        "changes": lambda: anext(store.changes()),
    }


async def failures(store: StateStore) -> set[str]:
    """Make every call at once; all must end in time with a StateError. Gives the reasons."""
    started = time.monotonic()
    calls = every_call(store)
    answers = await asyncio.gather(*(call() for call in calls.values()), return_exceptions=True)
    assert time.monotonic() - started < LIMIT_S + SLACK_S
    reasons = set()
    for op, answer in zip(calls, answers, strict=True):
        assert isinstance(answer, StateError), (op, answer)
        assert answer.op in (op, "registry")
        reasons.add(answer.reason)
    return reasons


async def assert_whole(store: StateStore) -> None:
    """It works, and no answer is another call's."""
    for rank in range(3):
        worker = Worker("after", rank)
        assert await store.offer(snapshot(rank, worker=worker)) is Offer.ACCEPTED
        assert await store.append(entries(rank + 1, rank + 3, worker=worker)) == [True] * 3
        loaded = await store.load(worker)
        assert loaded is not None
        assert loaded.snapshot == snapshot(rank, worker=worker)
        assert loaded.entries == entries(rank + 1, rank + 3, worker=worker)
        assert await store.log_length(worker) == 3
        await store.forget(worker)


# Hanging


async def test_a_hanging_server_costs_each_call_its_limit_and_no_more(store: StateStore, server: RedisServer) -> None:
    await store.offer(snapshot(4))
    await store.instances()
    server.pause()
    assert await failures(store) == {"timeout"}
    assert await failures(store) == {"timeout"}
    server.resume()
    await assert_whole(store)
    assert await store.append(entries(5, 9)) in ([True] * 5, [False] * 4 + [True])


async def test_the_loop_runs_on_while_the_server_hangs(store: StateStore, server: RedisServer) -> None:
    await store.offer(snapshot(4))
    server.pause()
    call = asyncio.create_task(store.append(entries(5, 8)))
    ticks = 0
    while not call.done():
        await asyncio.sleep(0.01)
        ticks += 1
    server.resume()
    assert ticks > 5
    with pytest.raises(StateError):
        await call


async def test_a_pause_shorter_than_the_limit_is_only_slow(store: StateStore, server: RedisServer) -> None:
    await store.offer(snapshot(4))
    server.pause()
    threading.Timer(0.1, server.resume).start()
    assert await store.append(entries(5, 8)) == [True] * 4


async def test_cancelled_calls_leave_no_answers_behind(store: StateStore, server: RedisServer) -> None:
    await store.offer(snapshot(4))
    dice = random.Random(1)
    for _ in range(40):
        calls = [asyncio.create_task(store.log_length(WORKER)), asyncio.create_task(store.load(WORKER))]
        await asyncio.sleep(dice.random() * 0.002)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    await assert_whole(store)


async def test_a_server_whose_script_does_not_end_is_busy(store: StateStore, server: RedisServer) -> None:
    server.command("CONFIG", "SET", "busy-reply-threshold", 20)

    def block() -> None:
        with suppress(redis.RedisError):
            server.command("EVAL", "while true do end", 0)

    thread = threading.Thread(target=block)
    thread.start()
    await asyncio.sleep(0.1)
    with pytest.raises(StateError) as caught:
        await store.append(entries(5, 8))
    assert caught.value.reason == "busy"
    server.command("SCRIPT", "KILL")
    thread.join()
    await assert_whole(store)


# Gone, and back


async def test_a_server_that_is_gone_is_noticed(store: StateStore, server: RedisServer) -> None:
    await store.offer(snapshot(4))
    server.kill()
    assert await failures(store) <= {"connection", "timeout"}


async def test_a_server_that_comes_back_empty_makes_appends_dirty(store: StateStore, server: RedisServer) -> None:
    await store.offer(snapshot(4))
    await store.append(entries(5, 6))
    server.restart(empty=True)
    assert await store.load(WORKER) is None
    assert await store.append([entry(7)]) == [None]
    assert await store.offer(snapshot(7)) is Offer.ACCEPTED
    assert await store.append([entry(8)]) == [True]


async def test_a_server_that_comes_back_with_its_data_goes_on() -> None:
    with RedisServer(Options(appendonly=True)) as server:
        store = open_store(server.url, LIMITS)
        await store.offer(snapshot(4))
        await store.append(entries(5, 6))
        server.restart(empty=False)
        assert await store.append(entries(6, 7)) == [False, True]
        loaded = await store.load(WORKER)
        assert loaded is not None
        assert loaded.entries == entries(5, 7)
        await store.close()


async def test_a_store_can_be_made_before_its_server(server: RedisServer) -> None:
    server.stop()
    store = open_store(server.url, LIMITS)
    with pytest.raises(StateError) as caught:
        await store.open()
    assert caught.value.reason == "connection"
    server.start()
    await assert_whole(store)
    await store.close()


async def test_everything_flushed_makes_appends_dirty(store: StateStore, server: RedisServer) -> None:
    await store.offer(snapshot(4))
    await store.append(entries(5, 6))
    server.command("FLUSHALL")
    assert await store.append([entry(7)]) == [None]
    assert await store.offer(snapshot(7)) is Offer.ACCEPTED


async def test_changes_go_on_after_an_outage(store: StateStore, server: RedisServer) -> None:
    other = open_store(server.url, LIMITS)
    await store.instances()
    await other.put_instance(instance("a"))
    assert await anext(store.changes()) == Put(instance("a"))
    server.pause()
    with pytest.raises(StateError):
        await anext(store.changes())
    server.resume()
    await other.put_instance(instance("b"))
    assert await told(store.changes(), 1) == [Put(instance("b"))]
    server.restart(empty=True)
    assert await told(store.changes(), 1) == [Lost()]
    await other.close()


# Connections cut


async def test_connections_killed_in_the_middle_lose_and_double_nothing(store: StateStore, server: RedisServer) -> None:
    await store.offer(snapshot(0))
    ended = threading.Event()

    def kill_clients() -> None:
        with redis.Redis(port=server.port) as client:
            while not ended.is_set():
                client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                time.sleep(0.003)

    killer = threading.Thread(target=kill_clients)
    killer.start()
    reasons: set[str] = set()
    for start in range(1, 600, 3):
        answers: list[bool | None] = []
        while len(answers) < 3 or None in answers:
            try:
                answers = await store.append([entry(seq, body=bytes(10_000)) for seq in range(start, start + 3)])
            except StateError as error:
                reasons.add(error.reason)
    ended.set()
    killer.join()
    loaded = await store.load(WORKER)
    assert loaded is not None
    assert [one.seq for one in loaded.entries] == list(range(1, 601))
    assert reasons <= {"connection"}


# Full


async def append_for_ever(store: StateStore) -> None:
    for seq in range(5, 1_000):
        assert await store.append([entry(seq, body=bytes(50_000))]) == [True]


async def test_a_full_server_refuses_whole_calls_and_keeps_what_it_has() -> None:
    with RedisServer(Options(maxmemory=4_000_000)) as server:
        store = open_store(server.url, LIMITS)
        await store.offer(snapshot(4, body=bytes(100_000)))
        with pytest.raises(StateError) as caught:
            await append_for_ever(store)
        assert (caught.value.op, caught.value.reason) == ("append", "oom")
        server.command("CONFIG", "SET", "maxmemory", 2_000_000)
        for refused in (lambda: store.offer(snapshot(900)), lambda: store.put_instance(instance("a"))):
            with pytest.raises(StateError) as caught:
                await refused()
            assert caught.value.reason == "oom"
        before = await store.load(WORKER)
        assert before is not None
        assert before.snapshot == snapshot(4, body=bytes(100_000))
        server.command("CONFIG", "SET", "maxmemory", 50_000_000)
        last = before.snapshot.seq + len(before.entries)
        assert await store.append([entry(last + 1)]) == [True]
        await assert_whole(store)
        await store.close()


async def test_evicted_keys_are_noticed_and_nothing_wrong_is_loaded() -> None:
    workers = [Worker("vllm", rank) for rank in range(80)]
    with RedisServer(Options(maxmemory=5_000_000, policy="allkeys-lru")) as server:
        store = open_store(server.url, LIMITS)
        for worker in workers:
            await store.offer(snapshot(4, worker=worker, body=bytes(60_000)))
            assert await store.append(entries(5, 30, worker=worker)) in ([True] * 26, [None] * 26)
        lost = 0
        for worker in workers:
            before = await store.load(worker)
            answers = await store.append(entries(31, 32, worker=worker))
            if before is None or len(before.entries) < 26:
                lost += 1
                assert answers == [None, None]
            else:
                assert before.snapshot == snapshot(4, worker=worker, body=bytes(60_000))
                assert before.entries == entries(5, 30, worker=worker)
                assert answers in ([True, True], [None, None])  # evicted in between
        assert lost > 10
        assert await store.offer(snapshot(33, worker=workers[0])) is Offer.ACCEPTED
        assert await store.append(entries(34, 34, worker=workers[0])) == [True]
        await store.close()


async def test_a_server_that_cannot_write_to_its_disk_is_noticed(store: StateStore, server: RedisServer) -> None:
    await store.offer(snapshot(4))
    server.command("CONFIG", "SET", "save", "3600 1")
    server.lose_disk()
    server.command("BGSAVE")
    wait_until(lambda: server.command("INFO", "persistence")["rdb_last_bgsave_status"] == "err")
    for refused in (store.append(entries(5, 6)), store.offer(snapshot(9)), store.delete_instance("a")):
        with pytest.raises(StateError) as caught:
            await refused
        assert caught.value.reason == "disk"
    assert await store.load(WORKER) is not None
    server.command("CONFIG", "SET", "stop-writes-on-bgsave-error", "no")
    await assert_whole(store)


# Locked and read-only


@pytest.mark.parametrize("password", ["", ":wrong-s3cret@", ":s3cret-pass%2Fwor@", "nobody:s3cret-pass%2Fword@"])
async def test_a_wrong_password_is_named_and_not_shown(password: str) -> None:
    with RedisServer(Options(password=SECRET)) as server:
        store = open_store(f"redis://{password}127.0.0.1:{server.port}", LIMITS)
        with pytest.raises(StateError) as caught:
            await store.append(entries(5, 6))
        assert caught.value.reason == "auth"
        assert "s3cret" not in f"{caught.value} {caught.value.detail}"
        assert await failures(store) == {"auth"}
        await store.close()
        right = open_store(f"redis://:s3cret-pass%2Fword@127.0.0.1:{server.port}", LIMITS)
        await assert_whole(right)
        await right.close()


async def test_what_a_user_must_not_do_is_named(server: RedisServer) -> None:
    server.command("ACL", "SETUSER", "weak", "on", ">pw", "~*", "+@read", "+@connection")
    store = open_store(f"redis://weak:pw@127.0.0.1:{server.port}", LIMITS)
    with pytest.raises(StateError) as caught:
        await store.append(entries(5, 6))
    assert caught.value.reason == "permission"
    await store.close()


async def test_a_replica_is_read_and_not_written(store: StateStore, server: RedisServer) -> None:
    await store.offer(snapshot(4))
    with RedisServer(Options(replica_of=server.port)) as replica:
        wait_until(lambda: bool(replica.command("EXISTS", worker_keys(WORKER).snapshot)))
        reading = open_store(replica.url, LIMITS)
        loaded = await reading.load(WORKER)
        assert loaded is not None
        for refused in (reading.append([entry(5)]), reading.offer(snapshot(9)), reading.forget(WORKER)):
            with pytest.raises(StateError) as caught:
                await refused
            assert caught.value.reason == "readonly"
        replica.command("REPLICAOF", "NO", "ONE")
        assert await reading.append([entry(5)]) == [True]
        await reading.close()


async def test_closing_does_not_wait_for_a_hanging_server(server: RedisServer) -> None:
    store = open_store(server.url, LIMITS)
    await store.offer(snapshot(4, ts_ms=T0))
    server.pause()
    started = time.monotonic()
    await store.close()
    assert time.monotonic() - started < LIMIT_S + SLACK_S
