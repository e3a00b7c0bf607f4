"""What only the store in Redis can meet: expiry, foreign and damaged bytes, lost halves. And it agrees with memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.format import FORMAT_VERSION
from store.keys import worker_keys
from store.memory_state import MemoryState
from store.state import MAX_LOG_ENTRIES, STALE_MS, Entry, Lineage, Offer, Snapshot, StateLimits, StateStore
from store.state_url import open_store
from tests.store.builders import LINEAGE, T0, WORKER, entries, entry, snapshot
from tests.store.conftest import Replicas
from tests.support.redis_server import Options, RedisServer

KEYS = worker_keys(WORKER)


@pytest.fixture
def store(redis_replicas: Replicas) -> StateStore:
    return redis_replicas()


async def filled(store: StateStore) -> None:
    await store.offer(snapshot(4))
    await store.append(entries(5, 8))


# Expiry


async def test_writes_set_the_expiry_and_touching_puts_it_off(store: StateStore, server: RedisServer) -> None:
    await store.offer(snapshot(4))
    assert 86_000_000 < server.command("PTTL", KEYS.snapshot) <= 86_400_000
    for key in KEYS:
        server.command("PEXPIRE", key, 1000)
    await store.append([entry(5)])
    assert all(server.command("PTTL", key) > 86_000_000 for key in KEYS)
    for key in KEYS:
        server.command("PEXPIRE", key, 1000)
    await store.touch([WORKER])
    assert all(server.command("PTTL", key) > 86_000_000 for key in KEYS)


async def test_the_expiry_can_be_set(server: RedisServer) -> None:
    store = open_store(server.url, StateLimits(ttl_s=0.05))
    await filled(store)
    await asyncio.sleep(0.1)
    assert await store.load(WORKER) is None
    assert server.command("DBSIZE") == 0
    await store.close()


async def test_touching_many_workers_makes_no_keys(store: StateStore, server: RedisServer) -> None:
    await store.touch(WORKER._replace(dp_rank=rank) for rank in range(2_000))
    assert server.command("DBSIZE") == 0


# Lost and foreign halves


async def test_a_lost_snapshot_makes_appends_dirty(store: StateStore, server: RedisServer) -> None:
    await filled(store)
    server.command("DEL", KEYS.snapshot)
    assert await store.load(WORKER) is None
    assert await store.append([entry(9)]) == [None]
    assert await store.offer(snapshot(9)) is Offer.ACCEPTED
    assert await store.log_length(WORKER) == 0


async def test_a_lost_log_makes_appends_dirty(store: StateStore, server: RedisServer) -> None:
    await filled(store)
    server.command("DEL", KEYS.log)
    loaded = await store.load(WORKER)
    assert loaded is not None
    assert loaded.entries == []
    assert await store.append([entry(9)]) == [None]
    assert await store.offer(snapshot(9)) is Offer.ACCEPTED
    assert await store.append([entry(10)]) == [True]


async def test_a_hole_in_the_log_ends_what_is_loaded(store: StateStore, server: RedisServer) -> None:
    await filled(store)
    server.command("XDEL", KEYS.log, f"{T0 + 60}-6")
    loaded = await store.load(WORKER)
    assert loaded is not None
    assert loaded.entries == [entry(5)]


async def test_a_log_of_another_lineage_is_not_loaded(store: StateStore, server: RedisServer) -> None:
    await store.offer(snapshot(4, Lineage(0, 1)))
    await store.append(entries(5, 6, Lineage(0, 1)))
    rows = server.command("XRANGE", KEYS.log, "-", "+")
    await store.forget(WORKER)
    await store.offer(snapshot(4))
    for identifier, fields in rows:
        server.command("XADD", KEYS.log, identifier, "d", fields[b"d"])
    loaded = await store.load(WORKER)
    assert loaded is not None
    assert loaded.entries == []


async def test_entries_before_the_snapshot_are_passed_over(store: StateStore, server: RedisServer) -> None:
    await store.offer(snapshot(0))
    await store.append(entries(1, 3))
    rows = server.command("XRANGE", KEYS.log, "-", "+")
    await store.offer(snapshot(2))
    server.command("DEL", KEYS.log)
    for identifier, fields in rows:
        server.command("XADD", KEYS.log, identifier, "d", fields[b"d"])
    loaded = await store.load(WORKER)
    assert loaded is not None
    assert loaded.entries == [entry(3)]


@pytest.mark.parametrize("command", [("SET", "x"), ("RPUSH", "x"), ("HSET", "a", "b"), ("XADD", "1-1", "a", "b")])
async def test_keys_of_other_types_or_contents_count_as_nothing(
    store: StateStore, server: RedisServer, command: tuple[str, ...]
) -> None:
    name, *arguments = command
    for key in KEYS:
        server.command(name, key, *arguments)
    assert await store.load(WORKER) is None
    assert await store.append([entry(5)]) == [None]
    assert await store.offer(snapshot(4)) is Offer.ACCEPTED
    assert await store.append([entry(5)]) == [True]
    loaded = await store.load(WORKER)
    assert loaded is not None
    assert (loaded.snapshot, loaded.entries) == (snapshot(4), [entry(5)])


@pytest.mark.parametrize("kind", ["SET", "RPUSH"])
async def test_a_log_of_another_type_counts_as_empty(store: StateStore, server: RedisServer, kind: str) -> None:
    await filled(store)
    server.command("DEL", KEYS.log)
    server.command(kind, KEYS.log, "x")
    loaded = await store.load(WORKER)
    assert loaded is not None
    assert loaded.entries == []
    assert await store.append([entry(9)]) == [None]
    assert await store.offer(snapshot(9)) is Offer.ACCEPTED
    assert await store.append([entry(10)]) == [True]


# Damaged and foreign bytes


@pytest.mark.parametrize("field", ["v", "l", "s", "t", "f", "b"])
@pytest.mark.parametrize("value", [b"", b"1", b"\xff", b"99999999999999999999-1", None])
async def test_a_damaged_snapshot_is_ignored_and_replaced(
    store: StateStore, server: RedisServer, field: str, value: bytes | None
) -> None:
    await store.offer(snapshot(4, fingerprint="x"))
    if value is None:
        server.command("HDEL", KEYS.snapshot, field)
    else:
        server.command("HSET", KEYS.snapshot, field, value)
    loaded = await store.load(WORKER)
    assert loaded is None or (field, value) == ("v", b"1")
    assert await store.offer(snapshot(4, fingerprint="x")) is (Offer.ACCEPTED if loaded is None else Offer.KEPT)
    assert await store.load(WORKER) is not None


async def test_a_damage_that_only_the_reader_sees_is_repaired_by_its_next_offer(
    redis_replicas: Replicas, server: RedisServer
) -> None:
    reader, writer = redis_replicas(), redis_replicas()
    await writer.offer(snapshot(40))
    body = bytearray(server.command("HGET", KEYS.snapshot, "b"))
    body[-1] ^= 1
    server.command("HSET", KEYS.snapshot, "b", bytes(body))
    assert await writer.offer(snapshot(30)) is Offer.KEPT
    assert await reader.load(WORKER) is None
    assert await reader.offer(snapshot(30)) is Offer.ACCEPTED
    loaded = await writer.load(WORKER)
    assert loaded is not None
    assert loaded.snapshot == snapshot(30)
    assert await reader.offer(snapshot(20)) is Offer.KEPT


async def test_a_damaged_entry_ends_what_is_loaded(store: StateStore, server: RedisServer) -> None:
    await filled(store)
    rows = server.command("XRANGE", KEYS.log, "-", "+")
    server.command("DEL", KEYS.log)
    for number, (identifier, fields) in enumerate(rows):
        value = fields[b"d"]
        server.command("XADD", KEYS.log, identifier, "d", value[:-1] if number == 2 else value)
    loaded = await store.load(WORKER)
    assert loaded is not None
    assert loaded.entries == entries(5, 6)


async def test_entries_of_another_worker_are_not_taken_for_its_own(store: StateStore, server: RedisServer) -> None:
    other = WORKER._replace(dp_rank=1)
    await filled(store)
    server.command("COPY", KEYS.snapshot, worker_keys(other).snapshot)
    assert await store.load(other) is None


async def test_a_later_release_is_left_alone_while_it_lives(store: StateStore, server: RedisServer) -> None:
    await filled(store)
    server.command("HSET", KEYS.snapshot, "v", FORMAT_VERSION + 1)
    assert await store.load(WORKER) is None
    assert await store.append([entry(9)]) == [None]
    assert await store.offer(snapshot(9)) is Offer.BETTER
    abandoned = snapshot(9, ts_ms=T0 + 80 + STALE_MS + 1)
    assert await store.offer(abandoned) is Offer.ACCEPTED


async def test_an_earlier_release_is_replaced(store: StateStore, server: RedisServer) -> None:
    await filled(store)
    server.command("HSET", KEYS.snapshot, "v", FORMAT_VERSION - 1)
    assert await store.load(WORKER) is None
    assert await store.offer(snapshot(2)) is Offer.ACCEPTED
    assert await store.log_length(WORKER) == 0


async def test_other_keys_are_not_taken_for_workers(store: StateStore, server: RedisServer) -> None:
    await store.offer(snapshot(4))
    for key in ("kvroute:{x}:snap", "kvroute:{a/b}:snap", "kvroute:{%/1}:snap", "kvroute:{a/01}:snap", "a:snap"):
        server.command("SET", key, "x")
    assert await store.workers() == [WORKER]


# Bounds


async def test_a_log_that_is_too_long_asks_for_a_snapshot(store: StateStore) -> None:
    await store.offer(snapshot(0))
    answers = await store.append(entries(1, MAX_LOG_ENTRIES + 2))
    assert answers == [True] * MAX_LOG_ENTRIES + [None] * 2
    assert await store.offer(snapshot(MAX_LOG_ENTRIES)) is Offer.ACCEPTED
    assert await store.append([entry(MAX_LOG_ENTRIES + 1)]) == [True]


async def test_large_values_pass(store: StateStore) -> None:
    large = snapshot(0, body=bytes(9_000_000))
    assert await store.offer(large) is Offer.ACCEPTED
    large_entries = [entry(seq, body=bytes(600_000)) for seq in range(1, 6)]
    assert await store.append(large_entries) == [True] * 5
    loaded = await store.load(WORKER)
    assert loaded is not None
    assert (loaded.snapshot, loaded.entries) == (large, large_entries)


async def test_many_calls_at_once_all_get_their_own_answers(store: StateStore) -> None:
    workers = [WORKER._replace(dp_rank=rank) for rank in range(60)]
    await asyncio.gather(*(store.offer(snapshot(worker.dp_rank, worker=worker)) for worker in workers))
    loaded = await asyncio.gather(*(store.load(worker) for worker in workers))
    assert [one and one.snapshot for one in loaded] == [snapshot(one.dp_rank, worker=one) for one in workers]


async def test_opening_warns_of_eviction(capsys: pytest.CaptureFixture[str], store: StateStore) -> None:
    with RedisServer(Options(maxmemory=50_000_000, policy="allkeys-lru")) as evicting:
        other = open_store(evicting.url)
        await other.open()
        await other.close()
    await store.open()
    assert capsys.readouterr().out.count("noeviction") == 1


# The same answers as in memory

LINEAGES = st.sampled_from([LINEAGE, Lineage(3, T0 + 30), Lineage(0, T0 + 100), Lineage(5, T0 + 20_000)])
SEQS = st.integers(0, 12)
TIMES = st.sampled_from([T0, T0 + 30, T0 + 100, T0 + 9_000, T0 + 20_000, T0 + 20_100])
FINGERPRINTS = st.sampled_from([None, "a", "b"])
OFFERS = st.builds(Snapshot, st.just(WORKER), LINEAGES, SEQS, TIMES, FINGERPRINTS, st.binary(max_size=3))
ENTRIES = st.builds(Entry, st.just(WORKER), LINEAGES, SEQS, TIMES, st.binary(max_size=3))
NEXT = st.tuples(st.integers(-1, 2), st.integers(0, 1))
"""An entry relative to the end of what is stored: seq and ts to add."""


async def following(store: StateStore, step: tuple[int, int]) -> list[Entry]:
    stored = await store.load(WORKER)
    if stored is None:
        return []
    top: Any = stored.entries[-1] if stored.entries else stored.snapshot
    return [Entry(WORKER, top.lineage, max(0, top.seq + step[0]), top.ts_ms + step[1], b"next")]


@settings(
    deadline=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(st.one_of(OFFERS, st.lists(ENTRIES, min_size=1, max_size=3), NEXT), min_size=2, max_size=12))
async def test_redis_answers_as_memory_does(
    store: StateStore, steps: list[Snapshot | list[Entry] | tuple[int, int]]
) -> None:
    memory = MemoryState()
    await store.forget(WORKER)
    for step in steps:
        if isinstance(step, Snapshot):
            assert await store.offer(step) == await memory.offer(step)
        else:
            batch = step if isinstance(step, list) else await following(memory, step)
            assert await store.append(batch) == await memory.append(batch)
        assert await store.load(WORKER) == await memory.load(WORKER)
        assert await store.log_length(WORKER) == await memory.log_length(WORKER)
