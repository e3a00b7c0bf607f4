"""HTTP calls to engines: limited in time and size, and with two ways to fail."""

from __future__ import annotations

import asyncio
import os
from http import HTTPStatus
from typing import NamedTuple

import aiohttp
import msgspec

from engine.http_client import HttpClient

ANSWER_LIMIT_BYTES = 8 << 20
_CLOSED = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientConnectionResetError)


class EngineUnreachable(Exception):
    """There is no HTTP answer: nobody listens, the connection broke, or (`timed_out`) it took too long."""

    def __init__(self, detail: str, *, timed_out: bool = False) -> None:
        super().__init__(detail)
        self.timed_out = timed_out


class UnusableAnswer(Exception):
    """There is an answer, but not the expected one: another status than 200, too long, or not JSON.

    `status` is that of the answer where it is the reason.
    """

    def __init__(self, detail: str, *, status: int | None = None) -> None:
        super().__init__(detail)
        self.status = status


class Answer(NamedTuple):
    """A whole HTTP answer of any status."""

    status: int
    body: bytes


async def fetch(
    client: HttpClient,
    url: str,
    timeout_s: float,
    *,
    post: bytes | None = None,
    limit_bytes: int = ANSWER_LIMIT_BYTES,
    key: str | None = None,
) -> Answer:
    """GET, or POST of JSON bytes that may come twice. `timeout_s` covers all of it. Redirects are not followed.

    `key` is sent as a bearer token, and is in no error.

    A call that finds its connection closed is made once more: the engine may have closed it while it was quiet.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout_s
    try:
        try:
            return await _exchange(client, url, timeout_s, post, limit_bytes, key)
        except _CLOSED as error:
            if isinstance(error, aiohttp.ClientConnectorError) or loop.time() >= end:
                raise
        return await _exchange(client, url, end - loop.time(), post, limit_bytes, key)
    except TimeoutError:
        raise EngineUnreachable(f"no answer from {url} within {timeout_s:g} s", timed_out=True) from None
    except (aiohttp.ClientError, OSError, ValueError) as error:  # ValueError: a host that cannot be encoded
        raise EngineUnreachable(f"no answer from {url}: {_reason(error)}") from error


async def fetch_text(client: HttpClient, url: str, timeout_s: float, key: str | None = None) -> str:
    """The text of a 200 answer; bytes that are not UTF-8 are replaced."""
    return (await _ok_body(client, url, timeout_s, key)).decode("utf-8", "replace")


async def fetch_object(client: HttpClient, url: str, timeout_s: float, key: str | None = None) -> dict[str, object]:
    """The JSON object of a 200 answer."""
    return json_object(await _ok_body(client, url, timeout_s, key), url)


async def _ok_body(client: HttpClient, url: str, timeout_s: float, key: str | None) -> bytes:
    answer = await fetch(client, url, timeout_s, key=key)
    if answer.status != HTTPStatus.OK:
        raise UnusableAnswer(f"{url} answered {answer.status}", status=answer.status)
    return answer.body


def json_object(body: bytes, source: str) -> dict[str, object]:
    """`body` as a JSON object; UnusableAnswer names `source`."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise UnusableAnswer(f"{source} answered something that is not JSON") from None
    if not isinstance(value, dict):
        raise UnusableAnswer(f"{source} answered JSON that is not an object")
    return value


async def _exchange(  # noqa: PLR0917
    client: HttpClient, url: str, timeout_s: float, post: bytes | None, limit_bytes: int, key: str | None
) -> Answer:
    headers = {"accept-encoding": "identity"} | ({} if post is None else {"content-type": "application/json"})
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    exchange = client.session().request(
        "GET" if post is None else "POST",
        url,
        data=post,
        headers=headers,
        allow_redirects=False,
        timeout=aiohttp.ClientTimeout(total=timeout_s),
    )
    async with exchange as answer:
        return Answer(answer.status, await _read(answer, limit_bytes))


def _reason(error: Exception) -> str:
    """A line. The system's words where it has some: aiohttp's name the address again, which the URL says."""
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the connection was closed"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the answer broke off, or is not encoded as it says"
    text = error.message if isinstance(error, aiohttp.ClientResponseError) else str(error)
    return (text.strip().splitlines() or [type(error).__name__])[0][:200]


async def _read(answer: aiohttp.ClientResponse, limit_bytes: int) -> bytes:
    body = bytearray()
    async for chunk in answer.content.iter_any():
        body += chunk
        if len(body) > limit_bytes:
            raise UnusableAnswer(f"{answer.url} answered more than {limit_bytes} bytes")
    return bytes(body)
