"""Heads that are known again by their bytes, whatever the length of the body is."""

from __future__ import annotations

import pytest

from app.known_heads import MOST_BYTES, Known, KnownHeads

HEAD = b"POST /route?model=m HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nX: y\r\n\r\n"
FORM = "application/json"


def request(body: bytes, head: bytes = HEAD, length: int | None = None) -> bytes:
    return head % (len(body) if length is None else length) + body


@pytest.fixture
def heads() -> KnownHeads:
    heads = KnownHeads()
    heads.keep(request(b"{}"), FORM, b"model=m")
    return heads


@pytest.mark.parametrize("body", [b"", b"{}", b"x" * 100_000, b"a\r\n\r\nb"])
def test_an_equal_head_is_known_with_any_body(heads: KnownHeads, body: bytes) -> None:
    data = request(body)
    assert heads.find(data) == Known(FORM, b"model=m", len(data) - len(body))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\r\n\r\n",
        request(b"{}")[:-1],
        request(b"{}") + b"{",
        request(b"{}") + request(b"{}"),
        request(b"{}", length=3),
        request(b"{}").replace(b"POST", b"PUT"),
        request(b"{}").replace(b"X: y", b"X: z"),
        request(b"{}").replace(b"X: y", b"X: y\r\nTransfer-Encoding: chunked"),
        request(b"{}").replace(b"X: y", b"X: y\r\nContent-Length: 2"),
        request(b"{}").replace(b"Content-Length: 2", b"Content-Length: +2"),
        request(b"{}").replace(b"Content-Length: 2", b"Content-Length:  2"),
        request(b"{}").replace(b"Content-Length: 2", b"Content-Length: 2 "),
        request(b"{}").replace(b"Content-Length: 2", b"Content-Length: "),
        request(b"{}").replace(b"Content-Length: 2", b"Content-Length: \xb2"),
        request(b"{}").replace(b"Content-Length: 2", b"Content-Length: 0000000000000002"),
        request(b"{}").replace(b"Content-Length: 2", b"content-length: 2"),
        request(b"{}").replace(b"\r\n", b"\n"),
        b"\r\n" + request(b"{}"),
    ],
)
def test_no_other_is(heads: KnownHeads, data: bytes) -> None:
    assert heads.find(data) is None


def test_what_is_long_or_no_whole_request_is_not_kept() -> None:
    heads = KnownHeads()
    for data in (request(b"{}")[:-1], b"GET / HTTP/1.1\r\n\r\n", request(b"{}").replace(b"y", b"y" * MOST_BYTES)):
        heads.keep(data, FORM, b"")
        assert heads.find(data) is None
    assert len(heads) == 0


def test_memory_is_bounded() -> None:
    heads = KnownHeads()
    for number in range(2_000):
        heads.keep(request(b"{}").replace(b"y", b"%d" % number), FORM, b"")
        assert 0 < len(heads) <= 256
