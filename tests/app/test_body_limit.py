"""A body is read up to its limits and no further, over a real server."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator

import pytest
import uvicorn
from fastapi import FastAPI
from starlette.requests import Request

from app.body_limit import read_body
from app.problems import answer_problems

LIMIT = 1000


@pytest.fixture
async def port() -> AsyncIterator[int]:
    app = FastAPI()
    answer_problems(app)

    @app.post("/size")
    async def size(request: Request) -> int:
        return len(await read_body(request, LIMIT, timeout_s=0.3))

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, ws="none", lifespan="off"))
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn offers no event
        await asyncio.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await serving


async def exchange(port: int, head: str, body: bytes = b"", *, close: bool = False) -> tuple[int, bool, bytes]:
    """Send a request; the answer's status, whether the server closed after it, and its text."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"POST /size HTTP/1.1\r\nhost: test\r\n{head}\r\n\r\n".encode() + body)
        if close:
            writer.write_eof()
        text = b""
        try:
            async with asyncio.timeout(0.8):
                while chunk := await reader.read(65536):
                    text += chunk
        except TimeoutError:
            return int(text.split()[1]), False, text
        return int(text.split()[1]) if text else 0, True, text
    finally:
        writer.close()


@pytest.mark.parametrize("size", [0, 1, LIMIT])
async def test_a_body_up_to_the_limit_is_read_whole(port: int, size: int) -> None:
    status, closed, text = await exchange(port, f"content-length: {size}", b"x" * size)
    assert (status, closed) == (200, False)
    assert text.endswith(str(size).encode())


@pytest.mark.parametrize("declared", [LIMIT + 1, 512 << 20, 10**30, "0" * 20 + "1001"])
async def test_a_declared_length_over_the_limit_is_refused_before_the_body_comes(port: int, declared: int) -> None:
    status, closed, text = await exchange(port, f"content-length: {declared}")
    assert status in (413, 400)
    assert closed
    assert status == 400 or b"application/problem+json" in text


async def test_a_chunked_body_is_cut_at_the_limit_without_waiting_for_its_end(port: int) -> None:
    status, closed, _ = await exchange(
        port, "transfer-encoding: chunked", b"200\r\n" + b"x" * 512 + b"\r\n3e8\r\n" + b"x" * 1000
    )
    assert (status, closed) == (413, True)


async def test_a_body_that_does_not_arrive_in_time_is_given_up(port: int) -> None:
    status, closed, _ = await exchange(port, "content-length: 10", b"x")
    assert (status, closed) == (408, True)


async def test_a_client_that_goes_away_does_no_harm(port: int) -> None:
    await exchange(port, "content-length: 10", b"x", close=True)
    assert (await exchange(port, "content-length: 1", b"x"))[0] == 200


async def test_a_compressed_body_is_not_taken(port: int) -> None:
    body = gzip.compress(b"{}")
    status, _, text = await exchange(port, f"content-encoding: gzip\r\ncontent-length: {len(body)}", body)
    assert status == 415
    assert b"content-encoding" in text
