"""HTTP calls that are cut short keep no connection."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from engine.http_answer import EngineUnreachable, fetch
from engine.http_client import HttpClient
from index.worker import EngineKind
from tests.support.fake_engine import FakeEngine, Reply

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving_once(handler: Handler) -> AsyncIterator[str]:
    """The URL of a server for one connection, which is over when the block is."""
    over = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await handler(reader, writer)
            writer.close()
            await writer.wait_closed()
        over.set()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with asyncio.timeout(5):
            await over.wait()


@pytest.mark.parametrize("cancelled", [False, True], ids=["late", "cancelled"])
async def test_a_call_cut_short_at_any_step_gives_its_place_back(cancelled: bool) -> None:
    """A stalled loop lets the time limit end in the same step in which the connection is there."""
    with FakeEngine(EngineKind.VLLM) as engine, socket.create_server(("127.0.0.1", 0)) as silent:
        async with HttpClient(most=1) as client:
            for steps in range(25):
                call = asyncio.create_task(fetch(client, f"http://127.0.0.1:{silent.getsockname()[1]}/x", 0.02))
                for _ in range(steps):
                    await asyncio.sleep(0)
                if cancelled:
                    call.cancel()
                else:
                    time.sleep(0.03)  # noqa: ASYNC251
                with pytest.raises((EngineUnreachable, asyncio.CancelledError)):
                    await call
            for _ in range(2):
                assert (await fetch(client, engine.url + "/version", 5)).status == 200


async def test_a_body_that_never_ends_is_cut_off_in_time() -> None:
    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"x")
            await asyncio.sleep(0.02)

    async with serving_once(drip) as url, HttpClient() as client:
        with pytest.raises(EngineUnreachable) as caught:
            await fetch(client, url, 0.3)
        assert caught.value.timed_out


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\nxx",
        b"HTTP/1.1 200 OK\r\n" + b"x" * 100_000,
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"\xff" * 40 + b"\r\n\r\n",
    ],
    ids=["nothing", "too little", "bad chunk", "no gzip", "endless head", "another protocol", "bytes"],
)
async def test_what_is_no_whole_answer_is_an_engine_that_does_not_answer(said: bytes) -> None:
    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)

    async with serving_once(say) as url, HttpClient() as client:
        with pytest.raises(EngineUnreachable) as caught:
            await fetch(client, url, 5)
        assert not caught.value.timed_out
        detail = str(caught.value)
        assert len(detail) < 260
        assert detail.isprintable()
        assert "400, message" not in detail


async def test_a_kept_connection_that_the_engine_has_closed_costs_no_answer() -> None:
    connections = 0

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"{}")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer_once, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/tokenize"
    async with server, HttpClient() as client:
        for number in range(1, 11):
            assert await fetch(client, url, 5, post=b"{}") == (200, b"{}")
            assert connections == number
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("url", ["http://a\ud800b:1/", "http://" + "a" * 70 + ":1/", "http://[::1/", "http://h:99999/"])
async def test_a_url_that_nobody_can_ask_is_an_engine_that_does_not_answer(url: str) -> None:
    async with HttpClient() as client:
        with pytest.raises(EngineUnreachable):
            await fetch(client, url, 5)


async def test_redirects_and_cookies_are_not_followed() -> None:
    with FakeEngine(EngineKind.VLLM) as engine:
        engine.spoil(Reply("", 307, headers={"location": "/version", "set-cookie": "a=b"}), "/x")
        async with HttpClient() as client:
            assert (await fetch(client, engine.url + "/x", 5)).status == 307
            assert engine.calls["/version"] == 0
            assert len(client.session().cookie_jar) == 0
