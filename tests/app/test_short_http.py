"""The short way for `POST /route` answers what uvicorn's own way answers, byte for byte, and goes it where it must."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from typing import Any

import pytest

from app import bounded_http, short_http
from app.known_heads import Known
from tests.support.engine_events import prompt, vllm_stored
from tests.support.fleet import fleet, instance, publish
from tests.support.publisher import Publisher
from tests.support.service import Running, serving, u32, wait_until

TOKENS = prompt(1)
JSON = json.dumps({"model": "m", "token_ids": TOKENS}).encode()
OCTETS = "application/octet-stream"
LAST = b"GET /instances/none HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
ANSWER_S = 5.0


def post(body: bytes = JSON, *headers: str, path: str = "/route", version: str = "1.1") -> bytes:
    lines = [f"POST {path} HTTP/{version}", "Host: x", *headers]
    if not any(line.lower().startswith(("content-length", "transfer-encoding")) for line in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def fields(**values: Any) -> bytes:
    return json.dumps({"model": "m", "token_ids": TOKENS, **values}).encode()


def exchanged(run: Running, *pieces: bytes, pause_s: float = 0.0) -> bytes:
    """All that is answered until the connection is closed, without what differs from run to run.

    One more request follows the first answer, so that it shows whether the connection was kept.
    """
    with connected(run) as connection:
        for piece in pieces:
            connection.sendall(piece)
            time.sleep(pause_s)
        answer = b""
        while not _whole(answer) and (received := connection.recv(65536)):
            answer += received
        with suppress(ConnectionError):
            connection.sendall(LAST)
            while received := connection.recv(65536):
                answer += received
    answer = re.sub(rb"date: [^\r]*", b"date: then", answer)
    answer = re.sub(rb"[0-9A-HJKMNP-TV-Z]{26}", b"ID", answer)
    return answer.replace(run.service.around.fleet.get("a").settings.url.encode(), b"URL")  # type: ignore[union-attr]


def connected(run: Running) -> socket.socket:
    host, port = run.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), ANSWER_S)


def _whole(answer: bytes) -> bool:
    head, _, rest = answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n").partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    return length is not None and len(rest) >= int(length[1])


@contextmanager
def both(http: str = "httptools", config: dict[str, Any] | None = None, **sections: Any) -> Iterator[list[Running]]:
    """Two services that hold the same, the second without the short way."""
    with ExitStack() as stack:
        runs = []
        for protocol in (None, http):
            publisher = stack.enter_context(Publisher())
            run = stack.enter_context(serving(fleet(instance("a", publisher), **sections), protocol, **config or {}))
            publish(run, "a", publisher, vllm_stored(TOKENS))
            runs.append(run)
        yield runs


SHORT = {
    "JSON": post(),
    "JSON, with a type": post(JSON, "Content-Type: application/json"),
    "octets": post(u32(TOKENS), f"Content-Type: {OCTETS}", path="/route?model=m"),
    "octets, dry": post(u32(TOKENS), f"Content-Type: {OCTETS}", path="/route?model=m&dry_run=true&session_id=s"),
    "keep-alive is said": post(JSON, "Connection: keep-alive"),
    "a query that counts for nothing": post(JSON, path="/route?model=other"),
    "headers of a gateway": post(JSON, "Accept: */*", "User-Agent: g", "X-Forwarded-For: 1.2.3.4", "Traceparent: 00-1"),
    "all fields": post(fields(session_id="s", exclude=["b"], candidates=["a", "c"], priority=1, lora=None)),
    "prompt as a list": post(json.dumps({"model": "m", "prompt": TOKENS}).encode()),
    "a long salt": post(fields(cache_salt="s" * 5000, session_id="t" * 5000)),
    "cold": post(fields(token_ids=[9] * 64)),
}
ORDINARY = {
    "octets, a long salt": post(
        u32(TOKENS), f"Content-Type: {OCTETS}", path=f"/route?model=m&cache_salt={'s' * 5000}&session_id={'t' * 5000}"
    ),
    "not JSON": post(b"{"),
    "no field": post(b"{}"),
    "a wrong token": post(fields(token_ids=[-1])),
    "empty": post(b""),
    "another model": post(fields(model="other")),
    "nobody": post(fields(candidates=[])),
    "explained": post(fields(explain=True)),
    "text": post(json.dumps({"model": "m", "prompt": "text"}).encode()),
    "another type": post(JSON, "Content-Type: text/plain"),
    "a type with a charset": post(JSON, "Content-Type: application/json; charset=utf-8"),
    "two types": post(JSON, "Content-Type: application/json", "Content-Type: text/plain"),
    "compressed": post(JSON, "Content-Encoding: gzip"),
    "too large": post(JSON, "Content-Length: 99999999999"),
    "far too large": post(JSON, f"Content-Length: {10**18}"),
    "chunked": post(b"%x\r\n%b\r\n0\r\n\r\n" % (len(JSON), JSON), "Transfer-Encoding: chunked"),
    "to be closed": post(JSON, "Connection: close"),
    "HTTP/1.0": post(version="1.0"),
    "HTTP/1.0, to be kept": post(JSON, "Connection: keep-alive", version="1.0"),
    "compressed on the way": post(b"%x\r\n%b\r\n0\r\n\r\n" % (len(JSON), JSON), "Transfer-Encoding: gzip, chunked"),
    "too long a query": post(u32(TOKENS), f"Content-Type: {OCTETS}", path="/route?model=m&session_id=" + "s" * 66_000),
    "expects": post(JSON, "Expect: 100-continue"),
    "upgrades": post(JSON, "Connection: Upgrade", "Upgrade: h2c"),
    "GET": b"GET /route HTTP/1.1\r\nhost: x\r\n\r\n",
    "PUT": post().replace(b"POST", b"PUT", 1),
    "a slash more": post(path="/route/"),
    "two slashes": post(path="//route"),
    "another path": post(path="/routes"),
    "escaped": post(path="/rout%65"),
    "a whole URL": post(path="http://x/route"),
    "a fragment": post(path="/route#there"),
    "no HTTP": b"\x16\x03\x01\x02\r\n\r\n",
    "no length": b"POST /route HTTP/1.1\r\nhost: x\r\n\r\n",
    "length and chunks": post(JSON, "Content-Length: 5", "Transfer-Encoding: chunked"),
    "two lengths": post(JSON, "Content-Length: 5", "Content-Length: 6"),
}


def test_what_is_common_goes_the_short_way_to_the_same_answer() -> None:
    with both() as (short, ordinary):
        for number, (name, request) in enumerate(SHORT.items(), start=1):
            answers = [exchanged(run, request) for run in (short, ordinary)]
            assert answers[0] == answers[1], name
            assert answers[0].startswith(b"HTTP/1.1 200 OK\r\n"), name
            assert short.short_route.answered == number, name
        assert ordinary.short_route.answered == 0


def test_what_is_not_goes_the_ordinary_way() -> None:
    with both() as (short, ordinary):
        for name, request in ORDINARY.items():
            answers = [exchanged(run, request) for run in (short, ordinary)]
            assert answers[0] == answers[1], name
            assert short.short_route.answered == 0, name


def test_a_head_that_came_before_needs_no_parser_and_changes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with both() as (short, ordinary):
        known = watched(short, monkeypatch)
        for name, request in SHORT.items():
            answers = [exchanged(run, *[request] * 4, pause_s=0.02) for run in (short, ordinary)]
            assert answers[0] == answers[1], name
            assert answers[0].count(b"HTTP/1.1 200 OK\r\n") == 4, name
            assert len(known) >= 3, name
            known.clear()


def test_a_request_after_a_known_head_is_judged_as_before_one() -> None:
    with both() as (short, ordinary):
        for name, request in ORDINARY.items():
            answers = [exchanged(run, post(), post(), request, pause_s=0.02) for run in (short, ordinary)]
            assert answers[0] == answers[1], name


def test_a_known_head_with_another_body_is_judged_by_the_body(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [JSON, b"{", b"{}", fields(explain=True), fields(token_ids=[-1]), fields(token_ids=[1] * 30), b"", JSON]
    with both(limits={"body_bytes": 100_000}) as (short, ordinary):
        known = watched(short, monkeypatch)
        requests = [post(body) for body in (JSON, *bodies, fields(token_ids=[1] * 60_000))]
        answers = [exchanged(run, *requests, pause_s=0.05) for run in (short, ordinary)]
        assert answers[0] == answers[1]
        assert len(known) >= len(bodies) // 2  # on a busy machine some arrive together


def test_known_heads_in_pieces_and_together_are_requests_like_others() -> None:
    request = post()
    pieces = [request, request, request[:50], request[50:], request * 3, request + request[:-7], request[-7:], request]
    with both() as (short, ordinary):
        answers = [exchanged(run, *pieces, pause_s=0.02) for run in (short, ordinary)]
        assert answers[0] == answers[1]
        assert answers[0].count(b"HTTP/1.1 200 OK\r\n") == 9


def test_a_connection_whose_heads_all_differ_keeps_few(monkeypatch: pytest.MonkeyPatch) -> None:
    with both() as (short, ordinary):
        requests = [post(JSON, f"X-Request-Id: {number}") for number in range(20)]
        answers = [exchanged(run, *requests, pause_s=0.005) for run in (short, ordinary)]
        assert answers[0] == answers[1]
        assert 0 < len(short.short_route.heads) <= short_http.HEADS_TRIED


def test_a_quiet_connection_is_closed_and_a_busy_one_is_not() -> None:
    with both(config={"timeout_keep_alive": 1}) as (short, _), connected(short) as connection:
        for _ in range(12):
            connection.sendall(post())
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 OK")
            time.sleep(0.2)
        began = time.monotonic()
        assert connection.recv(65536) == b""
        assert 0.3 < time.monotonic() - began < ANSWER_S - 1


def watched(run: Running, monkeypatch: pytest.MonkeyPatch) -> list[Known]:
    """What the service finds of known heads from now on."""
    found: list[Known] = []
    find = run.short_route.heads.find

    def watch(data: bytes) -> Known | None:
        known = find(data)
        if known is not None:
            found.append(known)
        return known

    monkeypatch.setattr(run.short_route.heads, "find", watch)
    return found


@pytest.mark.parametrize("given", ["Bearer right", "bearer right", "Bearer wrong", "right", None])
def test_the_token_is_asked_for_on_both_ways(given: str | None) -> None:
    with both(auth={"token": "right"}) as runs:
        request = post(JSON, *([f"Authorization: {given}"] if given else []))
        answers = [exchanged(run, request) for run in runs]
        assert answers[0] == answers[1]
        assert answers[0].startswith(b"HTTP/1.1 200" if given and given.endswith(" right") else b"HTTP/1.1 401")
        assert runs[0].short_route.answered == (given == "Bearer right")


def test_requests_that_are_sent_at_once_are_answered_in_their_order() -> None:
    bodies = [fields(token_ids=[7] * count) for count in (1, 2, 3, 4)]
    requests = [post(bodies[0]), post(b"{"), post(bodies[1]), post(bodies[2], path="/routes"), post(bodies[3]), LAST]
    with both() as (short, ordinary):
        answers = [exchanged(run, b"".join(requests)) for run in (short, ordinary)]
        assert answers[0] == answers[1]
        assert re.findall(rb'"prompt_tokens":(\d)', answers[0]) == [b"1", b"2", b"4"]
        assert short.short_route.answered == 1


@pytest.mark.parametrize("pause_s", [0.0, 0.002, 0.1])
def test_a_request_in_pieces_is_one_request(pause_s: float) -> None:
    with both() as (short, ordinary):
        request = post(JSON, "Content-Type: application/json")
        cuts = [0, 5, 60, len(request) - len(JSON), len(request) - 50, len(request)]
        pieces = [request[begin:end] for begin, end in pairwise(cuts)]
        answers = [exchanged(run, *pieces, pause_s=pause_s) for run in (short, ordinary)]
        assert answers[0] == answers[1]
        assert answers[0].startswith(b"HTTP/1.1 200")


def test_a_body_that_does_not_come_is_given_up() -> None:
    with both(limits={"body_timeout_s": 0.3}) as runs:
        answers = [exchanged(run, post()[:-10]) for run in runs]
        assert answers[0] == answers[1]
        assert answers[0].startswith(b"HTTP/1.1 408")


def test_a_connection_that_is_cut_within_the_body_is_counted_and_leaves_nothing() -> None:
    with both() as (short, _):
        for _ in range(3):
            with connected(short) as connection:
                connection.sendall(post()[:-10])
                time.sleep(0.01)
        wait_until(lambda: short.metric('kvroute_route_errors_total{status="400"}') == 3, ANSWER_S)
        assert short.short_route.answered == 0


def test_a_large_body_goes_the_short_way_too() -> None:
    with both() as (short, ordinary):
        answers = [exchanged(run, post(fields(token_ids=[1] * 60_000))) for run in (short, ordinary)]
        assert answers[0] == answers[1]
        assert short.short_route.answered == 1


def test_both_ways_count_alike() -> None:
    names = ("kvroute_route_", "kvroute_prompt", "kvroute_matched", "kvroute_reusable", "kvroute_unknown")
    with both() as runs:
        pages = []
        for run in runs:
            for request in (*SHORT.values(), *ORDINARY.values()):
                exchanged(run, request)
            lines = run.http.get("/metrics").text.splitlines()
            pages.append([line for line in lines if line.startswith(names) and "_seconds_" not in line])
            assert run.metric("kvroute_route_seconds_count") > len(SHORT)
        assert pages[0] == pages[1]
        assert len(pages[0]) > 10


def test_a_request_that_was_answered_shortly_can_be_reported_on() -> None:
    with both() as (short, _):
        answer = short.http.post("/route", content=JSON, headers={"content-type": "application/json"}).json()
        assert short.short_route.answered == 1
        path = f"/requests/{answer['request_id']}/finished"
        assert short.http.post(path, json={"cached_tokens": 48}).status_code == 204


@pytest.mark.parametrize("config", [{"limit_concurrency": 1}, {"root_path": "/kv"}])
def test_a_server_set_up_otherwise_has_no_short_way(config: dict[str, Any]) -> None:
    with both(config=config) as (short, ordinary):
        answers = [exchanged(run, post()) for run in (short, ordinary)]
        assert answers[0] == answers[1]
        assert short.short_route.answered == 0


def test_a_client_that_does_not_read_is_waited_for() -> None:
    """Its answers are not heaped up: what it sends is not read either."""
    with both() as (short, _), connected(short) as connection:
        connection.settimeout(0.5)
        with pytest.raises(TimeoutError):
            connection.sendall(post() * 200_000)
        assert short.short_route.answered < 100_000


def test_stopping_answers_what_is_under_way() -> None:
    with serving(fleet(instance("a"))) as run:
        connection, late = connected(run), connected(run)
        connection.sendall(post()[:-10])
        late.sendall(post())
        assert late.recv(65536).startswith(b"HTTP/1.1 200")
        threading.Timer(0.3, connection.sendall, [post()[-10:]]).start()
    with connection, late:
        assert late.recv(65536) == b""
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        assert connection.recv(65536) == b""


def test_line_ends_between_requests_do_not_add_up() -> None:
    """Some clients send one after a body."""
    with serving(fleet(instance("a"))) as run, connected(run) as connection:
        for _ in range(40):
            connection.sendall(post())
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 OK")
            connection.sendall(b"\r\n" * 1500)
            time.sleep(0.005)


@pytest.mark.parametrize("refused", ["compressed", "compressed on the way", "to be closed", "far too large"])
@pytest.mark.parametrize("behind", ["a head", "a request", "half a request"])
def test_what_comes_behind_a_request_that_ends_the_connection_is_not_run(
    refused: str, behind: str, caplog: pytest.LogCaptureFixture
) -> None:
    head = b"POST /nowhere HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n"
    second = {"a head": head, "a request": post(), "half a request": post()[:-10]}[behind]
    with serving(fleet(instance("a"))) as run:
        with connected(run) as connection:
            answer = cut_off(connection, ORDINARY[refused] + second)
        assert answer.count(b"HTTP/1.1 ") == 1
        assert run.short_route.answered == 0
    assert [record for record in caplog.records if record.exc_info] == []


HEADS = {
    "a header": b"x: " + b"a" * 400_000,
    "many headers": b"a: b\r\n" * 80_000,
    "the request line": b"",
    "a name": b"n" * 400_000,
}


@pytest.mark.parametrize("name", HEADS)
def test_a_head_without_an_end_is_cut_off(name: str) -> None:
    first = b"POST /route" + (b"?" + b"q" * 400_000 if not HEADS[name] else b" HTTP/1.1\r\nhost: x\r\n")
    with serving(fleet(instance("a"))) as run, connected(run) as connection:
        answer = cut_off(connection, first + HEADS[name])
        assert answer.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400"))
        assert run.http.get("/healthz").status_code == 200


@pytest.mark.parametrize("path", ["/route", "/index/match"])
def test_who_is_refused_in_the_middle_of_a_body_gets_the_answer(path: str) -> None:
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 536870912\r\n\r\n"
    with serving(fleet(instance("a"))) as run, connected(run) as connection:
        connection.sendall(head.encode() + b" " * 100_000)
        time.sleep(0.3)  # the answer is there, and nobody has read it
        for _ in range(10):
            connection.sendall(b" " * 100_000)
            time.sleep(0.01)
        assert connection.recv(65536).startswith(b"HTTP/1.1 413")


def test_a_refused_body_is_not_taken_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_http, "LINGER_BYTES", 1_000_000)
    monkeypatch.setattr(bounded_http, "LINGER_S", 1.0)
    head = b"POST /route HTTP/1.1\r\nhost: x\r\ncontent-length: 536870912\r\n\r\n"
    with serving(fleet(instance("a"))) as run:
        with connected(run) as fast, pytest.raises((ConnectionResetError, BrokenPipeError)):
            send_often(fast, head + b" " * 100_000, pause_s=0.0)
        with connected(run) as slow, pytest.raises((ConnectionResetError, BrokenPipeError)):
            send_often(slow, head, pause_s=0.01)


def send_often(connection: socket.socket, what: bytes, pause_s: float) -> None:
    for _ in range(2_000):
        connection.sendall(what)
        time.sleep(pause_s)


def test_trailers_and_chunk_headers_without_an_end_are_cut_off() -> None:
    head = post(b"", "Transfer-Encoding: chunked")
    with serving(fleet(instance("a"))) as run:
        for rest in (b"0\r\n" + b"a: b\r\n" * 80_000, b"1;" + b"x" * 400_000):
            with connected(run) as connection:
                cut_off(connection, head + rest)
        assert run.http.get("/healthz").status_code == 200


def test_a_long_head_that_ends_is_taken() -> None:
    with both() as runs:
        answers = [exchanged(run, post(JSON, "x: " + "a" * 30_000)) for run in runs]
        assert answers[0] == answers[1]
        assert answers[0].startswith(b"HTTP/1.1 200 OK\r\n")


def cut_off(connection: socket.socket, sent: bytes) -> bytes:
    """What is answered until the server closes; it must close before ANSWER_S."""
    answer = b""
    connection.settimeout(ANSWER_S)
    with suppress(ConnectionError):
        connection.sendall(sent)
    with suppress(ConnectionError):
        while received := connection.recv(65536):
            answer += received
    return answer
