"""The publisher over real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import zmq
import zmq.asyncio

from deploy.engine.events import END_MARKER, EventPublisher
from tests.support.ports import free_ports

LIMIT_S = 5.0


@asynccontextmanager
async def publishing(topic: str = "kv", buffer_steps: int = 100) -> AsyncIterator[tuple[EventPublisher, int, int]]:
    context = zmq.asyncio.Context()
    events, replay = free_ports(1), free_ports(1)
    publisher = EventPublisher(context, "127.0.0.1", events, replay, topic, buffer_steps)
    serving = asyncio.create_task(publisher.serve_replays())
    try:
        yield publisher, events, replay
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        publisher.close()
        context.term()


@asynccontextmanager
async def connected(kind: int, port: int) -> AsyncIterator[zmq.asyncio.Socket]:
    context = zmq.asyncio.Context()
    end = context.socket(kind)
    end.set(zmq.RCVHWM, 0)
    if kind == zmq.SUB:
        end.subscribe(b"")
    end.connect(f"tcp://127.0.0.1:{port}")
    try:
        yield end
    finally:
        context.destroy(0)


async def replayed(port: int, start: int) -> list[list[bytes]]:
    async with connected(zmq.DEALER, port) as dealer:
        await dealer.send_multipart((b"", start.to_bytes(8, "big")))
        frames: list[list[bytes]] = []
        while True:
            answer: list[bytes] = await asyncio.wait_for(dealer.recv_multipart(), LIMIT_S)
            if answer[-2] == END_MARKER:
                assert answer == [b"", b"", END_MARKER, b""]
                return frames
            frames.append(answer)


async def test_subscribers_get_topic_number_and_payload() -> None:
    async with publishing() as (publisher, port, _), connected(zmq.SUB, port) as subscriber:
        first: asyncio.Future[list[bytes]] = asyncio.ensure_future(subscriber.recv_multipart())
        while not first.done():
            publisher.publish(b"x")
            await asyncio.sleep(0.01)
        topic, seq, payload = first.result()
        assert (topic, len(seq), payload) == (b"kv", 8, b"x")
        publisher.publish(b"y")
        while (frames := await asyncio.wait_for(subscriber.recv_multipart(), LIMIT_S))[2] == b"x":
            pass
        assert frames == [b"kv", (publisher.next_seq - 1).to_bytes(8, "big"), b"y"]


async def test_a_replay_begins_where_asked_and_has_only_what_is_buffered() -> None:
    async with publishing(buffer_steps=5) as (publisher, _, port):
        for number in range(8):
            publisher.publish(bytes([number]))
        assert await replayed(port, 6) == [
            [b"", b"kv", (6).to_bytes(8, "big"), b"\x06"],
            [b"", b"kv", (7).to_bytes(8, "big"), b"\x07"],
        ]
        assert [frames[3] for frames in await replayed(port, 0)] == [b"\x03", b"\x04", b"\x05", b"\x06", b"\x07"]
        assert await replayed(port, 100) == []


async def test_a_request_without_delimiter_gets_no_answer_and_does_no_harm() -> None:
    async with publishing() as (publisher, _, port), connected(zmq.DEALER, port) as dealer:
        publisher.publish(b"x")
        await dealer.send_multipart(((0).to_bytes(8, "big"),))
        assert not await dealer.poll(200)
        assert len(await replayed(port, 0)) == 1


async def test_a_port_that_is_taken_is_an_error_and_leaves_nothing_bound() -> None:
    async with publishing() as (_, _, replay):
        events, context = free_ports(1), zmq.asyncio.Context()
        with pytest.raises(zmq.ZMQError):
            EventPublisher(context, "127.0.0.1", events, replay, "", 10)
        context.term()  # returns when all sockets are closed
    with socket.create_server(("127.0.0.1", events)):
        pass
