from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Literal

import pytest
import zmq
import zmq.asyncio
from xxhash import xxh3_64_digest

from engine.listener import (
    Clear,
    Link,
    Position,
    Resumed,
)
from tests.support.follower import EXACT, LIMITS, PARTIAL, Follower, following, source_of, subscribed, tells
from tests.support.publisher import Publisher, batch

PATIENT = replace(LIMITS, first_answer_s=5.0)  # where an answer is certain, a busy machine may take its time


async def test_a_restart_in_place_is_a_new_process(context: zmq.asyncio.Context, publisher: Publisher) -> None:
    async with following(context, source_of(publisher)) as follower:
        await subscribed(publisher)
        publisher.publish_all([batch() for _ in range(3)])
        await follower.holds(0, 1, 2)
        await asyncio.to_thread(publisher.restart)
        await subscribed(publisher)
        new = batch()
        publisher.publish(new)
        await follower.until(lambda: [b.payload for b in follower.held] == [new])
    assert follower.clears == ["start:exact", "reconnect:exact"]
    assert [s.up for s in follower.signals if isinstance(s, Link)] == [True, False, True]


async def test_an_engine_that_was_away_for_long_is_met_within_a_second_of_its_return(
    context: zmq.asyncio.Context, publisher: Publisher
) -> None:
    async with following(context, source_of(publisher)) as follower:
        await subscribed(publisher)
        publisher.publish(batch())
        await follower.holds(0)
        await asyncio.to_thread(publisher.stop)
        await follower.until(lambda: [s.up for s in follower.signals if isinstance(s, Link)] == [True, False])
        await asyncio.sleep(3.8)  # with waits that double up to 2 s the next try would be 1.3 s away, or more
        await asyncio.to_thread(publisher.restart)
        await follower.until(lambda: not follower.held, timeout_s=1.0)


@pytest.mark.parametrize("missed", [1, 2, 6])
@pytest.mark.parametrize("fingerprints", [True, False])
@pytest.mark.parametrize("replay", [True, False])
async def test_a_restart_hidden_by_progress_leaves_no_old_block(
    context: zmq.asyncio.Context, fingerprints: bool, replay: bool, missed: int
) -> None:
    process = "old"

    async def fingerprint() -> str | None:
        return process if fingerprints else None

    with Publisher(replay=replay) as publisher:
        async with following(context, source_of(publisher), fingerprint) as follower:
            await subscribed(publisher)
            old = [batch(), batch()]
            publisher.publish_all(old)
            await follower.holds(0, 1)
            process = "new"
            await asyncio.to_thread(publisher.restart, [batch() for _ in range(missed)])
            await follower.until(lambda: not set(old) & {b.payload for b in follower.held})
            await subscribed(publisher)
            publisher.publish(batch())
            await follower.holds(*(range(missed + 1) if replay else [missed]))
    assert follower.trust is (EXACT if replay else PARTIAL)


@pytest.mark.parametrize("form", ["current", "old"])
@pytest.mark.parametrize("fingerprint", ["same", None])
async def test_a_lost_connection_to_the_same_process_costs_nothing(
    context: zmq.asyncio.Context, fingerprint: str | None, form: Literal["current", "old"]
) -> None:
    with Publisher(form=form) as publisher:
        async with following(context, source_of(publisher), tells(fingerprint), PATIENT) as follower:
            await subscribed(publisher)
            publisher.publish_all([batch(), batch()])
            await follower.holds(0, 1)
            await lose_connection(publisher, follower)
            publisher.faults.drop_live = {2}
            publisher.requests.clear()
            publisher.publish(batch())
            await subscribed(publisher)
            publisher.publish(batch())
            await follower.holds(0, 1, 2, 3)
    assert follower.clears == ["start:exact"]
    assert publisher.requests[0] == (1 if fingerprint is None else 2)


async def test_the_same_process_without_fingerprint_is_cleared_when_its_buffer_does_not_reach_back(
    context: zmq.asyncio.Context,
) -> None:
    with Publisher(buffer_steps=3) as publisher:
        async with following(context, source_of(publisher)) as follower:
            await subscribed(publisher)
            publisher.publish_all([batch(), batch()])
            await follower.holds(0, 1)
            await lose_connection(publisher, follower, missed=3)
            await follower.holds(2, 3, 4)
    assert follower.clears == ["start:exact", "reconnect:partial"]


async def test_a_silent_replay_server_proves_nothing(context: zmq.asyncio.Context, publisher: Publisher) -> None:
    async with following(context, source_of(publisher)) as follower:
        await subscribed(publisher)
        publisher.publish(batch())
        await follower.holds(0)
        publisher.faults.silent = True
        await lose_connection(publisher, follower)
        await subscribed(publisher)
        publisher.publish(batch())
        await follower.holds(1)
    assert follower.clears == ["start:exact", "reconnect:partial"]


async def lose_connection(publisher: Publisher, follower: Follower, missed: int = 0) -> None:
    """The socket is lost and bound again; so many batches are published before any subscriber can be back."""
    await asyncio.to_thread(publisher.stop)
    await follower.until(lambda: Link(False) in follower.signals)
    publisher.miss([batch() for _ in range(missed)])
    publisher.start()


async def test_a_fingerprint_call_that_fails_or_hangs_is_unknown(
    context: zmq.asyncio.Context, publisher: Publisher
) -> None:
    calls = 0

    async def fingerprint() -> str | None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise OSError("connection refused")
        await asyncio.sleep(3600)
        return "late"

    limits = replace(LIMITS, fingerprint_s=0.3)
    async with following(context, source_of(publisher), fingerprint, limits) as follower:
        await subscribed(publisher)
        publisher.publish(batch())
        await follower.holds(0)
        await asyncio.to_thread(publisher.restart, [batch(), batch()])
        await follower.holds(0, 1)
    assert follower.clears == ["start:exact", "reconnect:exact"]


async def test_a_new_process_behind_a_proxy_is_seen_by_its_numbers(
    context: zmq.asyncio.Context, publisher: Publisher
) -> None:
    async with following(context, source_of(publisher)) as follower:
        await subscribed(publisher)
        publisher.publish_all([batch(1.0), batch(2.0)])
        await follower.holds(0, 1)
        publisher.start_over()
        publisher.publish(batch(3.0))
        await follower.until(lambda: [b.payload for b in follower.held] == [batch(3.0)])
        publisher.repeat(0)
        publisher.publish(batch(4.0))
        await follower.holds(0, 1)
    assert follower.clears == ["start:exact", "restart:exact"]


async def test_an_engine_that_comes_later_is_found(context: zmq.asyncio.Context, publisher: Publisher) -> None:
    await asyncio.to_thread(publisher.stop)
    async with following(context, source_of(publisher)) as follower:
        await asyncio.sleep(0.2)
        assert follower.signals == []
        publisher.start()
        publisher.publish(batch())
        await follower.holds(0)


@pytest.mark.parametrize("replay", [True, False])
@pytest.mark.parametrize("last_batch", ["equal", "different", "missing"])
@pytest.mark.parametrize(
    ("known", "told"), [("p", "p"), ("p", "q"), ("p", None), (None, "p"), (None, None)], ids=lambda f: f or "unknown"
)
async def test_a_position_is_resumed_when_fingerprint_or_last_batch_prove_the_process(
    context: zmq.asyncio.Context, known: str | None, told: str | None, last_batch: str, replay: bool
) -> None:
    with Publisher(replay=replay, buffer_steps=4) as publisher:
        position = await followed(context, publisher, known)
        if last_batch == "different":
            await asyncio.to_thread(publisher.restart, [batch() for _ in range(4)])
        publisher.publish_all([batch() for _ in range(4 if last_batch == "missing" else 1)])
        live = publisher.next_seq
        async with following(context, source_of(publisher), tells(told), PATIENT, position) as follower:
            await follower.until(lambda: bool(follower.verdicts))
            if replay:
                await follower.until(lambda: bool(follower.held) and follower.held[-1].seq == live - 1)
            await subscribed(publisher)
            publisher.publish(batch())
            await follower.until(lambda: bool(follower.held) and follower.held[-1].seq == live)
    if known == told == "p" or (None in (known, told) and last_batch == "equal" and replay):
        assert follower.verdicts == [Resumed()] + ([] if replay else [Clear("gap", PARTIAL)])
        assert follower.held[0].seq == (4 if replay else live)
    else:
        why = "reconnect" if None in (known, told) else "restart"
        assert follower.verdicts == [Clear(why, PARTIAL)]


async def followed(context: zmq.asyncio.Context, publisher: Publisher, fingerprint: str | None) -> Position:
    """A worker was followed from its first batch to its fourth; this is what was stored."""
    async with following(context, source_of(publisher), tells(fingerprint)) as follower:
        await follower.until(lambda: Link(True) in follower.signals)  # the fingerprint is told at once
        await subscribed(publisher)
        publisher.publish_all([batch() for _ in range(4)])
        await follower.holds(0, 1, 2, 3)
        position = follower.listener.position
    assert position == Position(4, fingerprint, xxh3_64_digest(follower.held[-1].payload), EXACT)
    return position


async def test_resync_replays_from_0(context: zmq.asyncio.Context, publisher: Publisher) -> None:
    publisher.publish_all([batch(), batch()])
    async with following(context, source_of(publisher)) as follower:
        await follower.holds(0, 1)
        assert follower.listener.resync("orphans")
        await follower.until(lambda: "orphans:exact" in follower.clears)
        await follower.holds(0, 1)
        assert not follower.listener.resync("orphans")
    assert follower.listener.resync_requests == {"orphans": 2}
