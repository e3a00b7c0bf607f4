from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.asyncio

from engine.listener import (
    BadFrame,
    Batch,
    Gap,
    Link,
    Listener,
    Signal,
    Source,
)
from tests.support.follower import EXACT, LIMITS, PARTIAL, following, source_of, subscribed, unknown
from tests.support.publisher import Publisher, batch, ranks

GOLDEN = Path(__file__).parent.parent / "golden"


# In order, each once


async def test_what_was_published_before_and_after_subscribing_arrives_once_in_order(
    context: zmq.asyncio.Context, publisher: Publisher
) -> None:
    publisher.publish_all([batch() for _ in range(5)])
    async with following(context, source_of(publisher)) as follower:
        await subscribed(publisher)
        publisher.publish_all([batch() for _ in range(5)])
        await follower.holds(*range(10))
    assert follower.clears == ["start:exact"]
    assert follower.signals[0] == Link(True)


async def test_what_slips_through_before_the_subscription_is_found(
    context: zmq.asyncio.Context, publisher: Publisher
) -> None:
    publisher.faults.drop_live = {0, 1}
    async with following(context, source_of(publisher)) as follower:
        await asyncio.to_thread(publisher.wait_for_requests, 1)
        publisher.publish_all([batch(), batch()])
        await follower.holds(0, 1)


async def test_a_live_gap_is_filled_by_replay(context: zmq.asyncio.Context, publisher: Publisher) -> None:
    async with following(context, source_of(publisher)) as follower:
        await subscribed(publisher)
        publisher.faults.drop_live = {1, 2}
        publisher.publish_all([batch() for _ in range(5)])
        await follower.holds(*range(5))
    assert Gap(2) in follower.signals
    assert follower.clears == ["start:exact"]


async def test_a_burned_number_clears_and_the_stream_goes_on(
    context: zmq.asyncio.Context, publisher: Publisher
) -> None:
    async with following(context, source_of(publisher)) as follower:
        await subscribed(publisher)
        publisher.publish(batch())
        publisher.burn()
        publisher.publish_all([batch(), batch()])
        await follower.holds(2, 3)
    assert follower.clears == ["start:exact", "gap:partial"]


async def test_a_short_buffer_is_partial(context: zmq.asyncio.Context) -> None:
    with Publisher(buffer_steps=4) as publisher:
        publisher.publish_all([batch() for _ in range(9)])
        async with following(context, source_of(publisher)) as follower:
            await follower.holds(5, 6, 7, 8)
    assert follower.clears == ["start:partial"]


async def test_without_replay_live_batches_are_followed(context: zmq.asyncio.Context) -> None:
    with Publisher(replay=False) as publisher:
        publisher.publish(batch())
        async with following(context, source_of(publisher)) as follower:
            await subscribed(publisher)
            publisher.publish_all([batch(), batch()])
            await follower.holds(1, 2)
    assert follower.clears == ["start:partial"]


async def test_a_silent_replay_server_is_given_up(context: zmq.asyncio.Context, publisher: Publisher) -> None:
    publisher.faults.silent = True
    publisher.publish(batch())
    async with following(context, source_of(publisher)) as follower:
        await subscribed(publisher)
        publisher.publish(batch())
        await follower.holds(1)
    assert follower.clears == ["start:partial"]


@pytest.mark.parametrize("lost_answers", [1, None])
async def test_batches_lost_inside_answers_are_asked_for_until_they_are_surely_gone(
    context: zmq.asyncio.Context, publisher: Publisher, lost_answers: int | None
) -> None:
    publisher.publish_all([batch() for _ in range(8)])
    publisher.faults.lose_in_replay = {3: lost_answers, 5: lost_answers}
    async with following(context, source_of(publisher)) as follower:
        await follower.until(lambda: bool(follower.held) and follower.held[-1].seq == 7)
    if lost_answers is None:
        assert follower.clears == ["start:exact", "gap:partial", "gap:partial"]
        assert [b.seq for b in follower.held] == [6, 7]
    else:
        assert follower.clears == ["start:exact"]


async def test_a_lost_end_marker_ends_by_time(context: zmq.asyncio.Context, publisher: Publisher) -> None:
    publisher.publish_all([batch() for _ in range(3)])
    publisher.faults.lose_end_markers = 2
    async with following(context, source_of(publisher)) as follower:
        await follower.holds(0, 1, 2)
        await asyncio.to_thread(publisher.wait_for_requests, 2)
    assert publisher.requests[:2] == [0, 3]
    assert follower.clears == ["start:exact"]


async def test_an_answer_that_breaks_off_is_resumed(context: zmq.asyncio.Context, publisher: Publisher) -> None:
    publisher.publish_all([batch() for _ in range(5)])
    publisher.faults.stop_after = 2
    async with following(context, source_of(publisher)) as follower:
        await follower.holds(*range(5))
    assert publisher.requests[:3] == [0, 2, 4]


async def test_slow_progress_is_one_request(context: zmq.asyncio.Context, publisher: Publisher) -> None:
    publisher.publish_all([batch() for _ in range(4)])
    publisher.faults.answer_delay_s = 0.25
    async with following(context, source_of(publisher)) as follower:
        await follower.holds(*range(4))
    assert publisher.requests[0] == 0
    assert 0 not in publisher.requests[1:]


# Long replays and slow consumers


@pytest.mark.parametrize("size_bytes", [2_000, 20_000])
async def test_10_000_batches_through_a_router_with_the_default_mark_arrive_whole(
    context: zmq.asyncio.Context, publisher: Publisher, size_bytes: int
) -> None:
    published = [batch(float(n), ["x" * size_bytes]) for n in range(10_000)]
    publisher.publish_all(published)
    async with following(context, source_of(publisher)) as follower:
        await follower.until(lambda: len(follower.held) == len(published), 60)
    assert [b.payload for b in follower.held] == published
    assert follower.clears == ["start:exact"]


async def test_a_slow_consumer_loses_nothing(context: zmq.asyncio.Context, publisher: Publisher) -> None:
    publisher.publish_all([batch(float(n), ["x" * 2_000]) for n in range(1_500)])
    async with following(context, source_of(publisher)) as follower:
        follower.delay_s = 0.001
        await subscribed(publisher)
        publisher.publish_all([batch(float(n), ["x" * 2_000]) for n in range(1_500, 2_000)])
        await follower.until(lambda: len(follower.held) == 2_000, 60)
    assert follower.clears == ["start:exact"]


async def test_a_busy_stream_leaves_the_event_loop_to_others(
    context: zmq.asyncio.Context, publisher: Publisher
) -> None:
    publisher.publish_all([batch(float(n)) for n in range(10_000)])
    turns = 0
    async with following(context, source_of(publisher), limits=replace(LIMITS, drain_batches=100)) as follower:
        while len(follower.held) < 10_000:
            await asyncio.sleep(0)
            turns += bool(follower.held)
    assert turns > 50


# Frames and endpoints


async def test_bad_frames_are_told_and_dropped(context: zmq.asyncio.Context, publisher: Publisher) -> None:
    async with following(context, source_of(publisher)) as follower:
        await subscribed(publisher)
        publisher.send_frames(b"", b"\x00", b"\x92")
        publisher.send_frames(b"only")
        publisher.send_frames(b"", b"\xff" * 8, b"")
        publisher.publish(b"\xc1")
        await follower.holds(0)
    assert [s.reason for s in follower.signals if isinstance(s, BadFrame)] == ["seq_length", "frame_count", "seq_range"]
    assert follower.held[0].payload == b"\xc1"


async def test_bad_frames_in_an_answer_are_told_and_dropped(context: zmq.asyncio.Context) -> None:
    good = ["", "", "00" * 8, "c1"]
    answer = [["", "c1"], ["", "", "00", "c1"], good, ["", "", "ff" * 8, ""]]
    with Publisher(replay=False) as publisher, recorded_router(answer) as (replay, serve):
        async with following(context, Source(publisher.events, replay)) as follower:
            await serve()
            await follower.holds(0)
    bad = [s.reason for s in follower.signals if isinstance(s, BadFrame)]
    assert bad == ["replay_frame_count", "replay_seq_length"]


async def test_replay_answers_without_topic_frame_are_understood(context: zmq.asyncio.Context) -> None:
    with Publisher(form="old", topic="kv-events") as publisher:
        publisher.publish_all([batch() for _ in range(3)])
        async with following(context, source_of(publisher)) as follower:
            await follower.holds(0, 1, 2)
    assert follower.clears == ["start:exact"]


async def test_several_engines_behind_one_endpoint_are_told_apart_by_topic(
    context: zmq.asyncio.Context, publisher: Publisher
) -> None:
    def frames(topic: bytes, seq: int) -> tuple[bytes, bytes, bytes]:
        return topic, seq.to_bytes(8, "big"), topic + bytes([seq])

    topics = ["kv@A", "kv@B", "kv@A@long"]
    async with (
        following(context, Source(publisher.events, None, topics[0])) as a,
        following(context, Source(publisher.events, None, topics[1])) as b,
        following(context, Source(publisher.events, None, topics[2])) as c,
    ):
        await subscribed(publisher, count=3)
        for seq in range(3):
            for topic in topics:
                publisher.send_frames(*frames(topic.encode(), seq))
        for follower, topic in ((a, topics[0]), (b, topics[1]), (c, topics[2])):
            await follower.holds(0, 1, 2)
            assert [x.payload for x in follower.held] == [frames(topic.encode(), n)[2] for n in range(3)]
            assert not [s for s in follower.signals if isinstance(s, Gap)]


async def test_ipv6(context: zmq.asyncio.Context) -> None:
    try:
        publisher = Publisher(host="[::1]")
    except zmq.ZMQError:
        pytest.skip("no IPv6 here")
    with publisher:
        publisher.publish(batch())
        async with following(context, source_of(publisher)) as follower:
            await subscribed(publisher)
            publisher.publish(batch())
            await follower.holds(0, 1)


async def test_each_rank_has_its_own_stream(context: zmq.asyncio.Context) -> None:
    first, second = publishers = ranks(2)
    try:
        assert second.port == first.port + 1
        async with following(context, source_of(first)) as a, following(context, source_of(second)) as b:
            await subscribed(first)
            await subscribed(second)
            first.publish(batch(rank=0))
            second.publish_all([batch(rank=1), batch(rank=1)])
            await a.holds(0)
            await b.holds(0, 1)
    finally:
        for publisher in publishers:
            publisher.close()


@pytest.mark.parametrize("source", [Source("nonsense", None), Source("tcp://127.0.0.1:1", "nonsense")])
async def test_a_malformed_endpoint_is_an_error_at_once(context: zmq.asyncio.Context, source: Source) -> None:
    with pytest.raises(zmq.ZMQError):
        async with Listener(context, source, LIMITS, unknown):
            pass


# Recorded exchanges


@contextmanager
def recorded_router(answers: list[list[str]]) -> Iterator[tuple[str, Callable[[], Awaitable[list[bytes]]]]]:
    """A ROUTER that answers one request with recorded frames."""
    with zmq.asyncio.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")

        async def serve() -> list[bytes]:
            client, *request = await router.recv_multipart()
            for answer in answers:
                await router.send_multipart([client, *map(bytes.fromhex, answer)])
            return request

        yield f"tcp://127.0.0.1:{port}", serve


def recorded() -> list[Any]:
    vllm = json.loads((GOLDEN / "vllm/replay.json").read_text())["exchanges"]
    sglang = json.loads((GOLDEN / "sglang/replay.json").read_text())["exchanges"]
    answers = [(e["name"], e["request"], e["answers"]) for e in vllm if e["socket"] == "DEALER"]
    answers += [(e["what"], e["request"], e["replies"]) for e in sglang if e["socket"] == "DEALER"]
    return [
        pytest.param(answer, id=name)
        for name, request, answer in answers
        if request == ["", "0" * 16] and len(answer) > 1
    ]


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("answer", recorded())
async def test_recorded_answers_of_both_engines_are_understood(
    context: zmq.asyncio.Context, answer: list[list[str]], old: bool
) -> None:
    expected = [(int(seq, 16), bytes.fromhex(payload)) for _, _, seq, payload in answer[:-1]]
    frames = [[a[0], *a[2:]] for a in answer] if old else answer
    with Publisher(replay=False) as publisher, recorded_router(frames) as (replay, serve):
        async with following(context, Source(publisher.events, replay)) as follower:
            assert await serve() == [b"", bytes(8)]
            await follower.holds(*(seq for seq, _ in expected))
    assert [(b.seq, b.payload) for b in follower.held] == expected
    assert follower.trust is (EXACT if expected[0][0] == 0 else PARTIAL)


# Ending


async def test_leaving_is_prompt_and_leaves_nothing_behind(context: zmq.asyncio.Context, publisher: Publisher) -> None:
    async def hanging() -> str | None:
        await asyncio.sleep(3600)
        return None

    publisher.faults.silent = True
    before = asyncio.all_tasks()
    async with asyncio.timeout(1), following(context, source_of(publisher), hanging) as follower:
        await follower.until(lambda: Link(True) in follower.signals)
    assert asyncio.all_tasks() == before
    gc.collect()  # warnings of forgotten sockets are errors


async def test_a_cancelled_step_loses_nothing(context: zmq.asyncio.Context, publisher: Publisher) -> None:
    got: list[Signal] = []
    async with Listener(context, source_of(publisher), LIMITS, unknown) as listener:
        for _ in range(200):
            publisher.publish(batch())
            with suppress(TimeoutError):
                async with asyncio.timeout(0.001):
                    got += await anext(listener)
        async with asyncio.timeout(10):
            while sum(isinstance(s, Batch) for s in got) < 200:
                got += await anext(listener)
    assert [s.seq for s in got if isinstance(s, Batch)] == list(range(200))
