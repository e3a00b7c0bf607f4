"""Reading a request's body, but not more of it than is allowed, nor for longer."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from app.problems import Problem

_CLOSE = {"connection": "close"}
"""What is left of a body must not be read as the next request."""


async def read_body(request: Request, max_bytes: int, timeout_s: float) -> bytes:
    """The whole body. Raises Problem: 413 too large (by its declared length without reading any of it), 408 too slow,
    415 compressed, 400 cut off by the client.
    """
    transfer = request.headers.get("transfer-encoding", "chunked").strip().lower()
    if transfer != "chunked":
        raise Problem(415, "a compressed body is not taken", field="transfer-encoding", headers=_CLOSE)
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise Problem(415, "a compressed body is not taken", field="content-encoding", headers=_CLOSE)
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and _exceeds(declared, max_bytes):
        raise _too_large(max_bytes)
    try:
        async with asyncio.timeout(timeout_s):
            return await _read(request, max_bytes)
    except TimeoutError:
        raise Problem(408, f"the body did not arrive within {timeout_s:g} s", headers=_CLOSE) from None
    except ClientDisconnect:
        raise Problem(400, "the connection was closed within the body", headers=_CLOSE) from None


async def _read(request: Request, max_bytes: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise _too_large(max_bytes)
        chunks.append(chunk)
    return b"".join(chunks)


def _exceeds(declared: str, max_bytes: int) -> bool:
    digits = declared.lstrip("0")
    return len(digits) > len(str(max_bytes)) or int(digits or "0") > max_bytes


def _too_large(max_bytes: int) -> Problem:
    return Problem(413, f"the body is larger than {max_bytes} bytes", headers=_CLOSE)
