"""Heads that are known again by their bytes, whatever the length of the body is."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.known_heads import MOST_BYTES, Known, KnownHeads, head_apart
from tests.support.cores import MODULES, native_module, need_native

HEAD = b"POST /route?model=m HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nX: y\r\n\r\n"
FORM = "application/json"


def request(body: bytes, head: bytes = HEAD, length: int | None = None) -> bytes:
    return head % (len(body) if length is None else length) + body


@pytest.fixture(params=MODULES)
def core(request: pytest.FixtureRequest) -> ModuleType | None:
    module: ModuleType | None = request.param
    return module


@pytest.fixture
def heads(core: ModuleType | None) -> KnownHeads:
    heads = KnownHeads(core)
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


def test_what_is_long_or_no_whole_request_is_not_kept(core: ModuleType | None) -> None:
    heads = KnownHeads(core)
    for data in (request(b"{}")[:-1], b"GET / HTTP/1.1\r\n\r\n", request(b"{}").replace(b"y", b"y" * MOST_BYTES)):
        heads.keep(data, FORM, b"")
        assert heads.find(data) is None
    assert len(heads) == 0


def test_memory_is_bounded() -> None:
    heads = KnownHeads()
    for number in range(2_000):
        heads.keep(request(b"{}").replace(b"y", b"%d" % number), FORM, b"")
        assert 0 < len(heads) <= 256


PARTS = st.lists(
    st.sampled_from(
        [
            *(b"POST / HTTP/1.1", b"\r\n", b"\r\n", b"\r", b"\n", b"x: y", b"\r\n\r\n", b"body"),
            *(
                b"content-length: ",
                b"\r\nContent-Length: ",
                b"\r\nCONTENT-LENGTH:",
                b"1",
                b"23",
                b" ",
                b"0" * 14,
                b"\xb2",
            ),
        ]
    ),
    max_size=14,
)


@need_native
@given(PARTS, st.integers(0, 80))
def test_both_cores_take_heads_apart_alike(parts: list[bytes], most: int) -> None:
    data = b"".join(parts)
    assert native_module().request_head(data, most) == head_apart(data, most)
    assert native_module().request_head(data, MOST_BYTES) == head_apart(data, MOST_BYTES)
