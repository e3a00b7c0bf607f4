"""The nginx gateway while routers, engines and its own workers die or hang: requests stay answered."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.deploy.gateway.nginx_process import INSTALL, IS_INSTALLED, PATIENT, NginxProcess
from tests.deploy.gateway.stack import HASHES, addresses, completion, instance, prompt, router, urls
from tests.support.cpu_engine import CpuEngine, EngineProcess, cpu_engine
from tests.support.ports import free_port
from tests.support.router_process import RouterProcess
from tests.support.service import wait_until

pytestmark = [
    pytest.mark.skipif(not IS_INSTALLED, reason=INSTALL),
    pytest.mark.xdist_group("nginx_failures"),  # one process sets it up once
]
BOUND_S = 5.0
"""Far above the gateway's own limits (0.3 s), far below a client's patience."""


@pytest.fixture(scope="module")
def engines() -> Iterator[list[CpuEngine]]:
    """Two vLLM-faced engines."""
    with cpu_engine("vllm", **HASHES) as first, cpu_engine("vllm", **HASHES) as second:
        yield [first, second]


def settings(engines: list[CpuEngine]) -> list[dict[str, Any]]:
    return [instance(f"vllm-{n}", engine) for n, engine in enumerate(engines)]


@contextmanager
def routers(engines: list[CpuEngine], count: int, **sections: Any) -> Iterator[list[RouterProcess]]:
    with ExitStack() as stack:
        started = [stack.enter_context(router(settings(engines), **sections)) for _ in range(count)]
        for one in started:
            one.wait_until_ready()
        yield started


def ask(gateway: NginxProcess, seed: int = 0, **fields: Any) -> httpx.Response:
    answer = gateway.http.post("/v1/completions", json=completion(prompt(seed), **fields))
    assert answer.status_code == 200, (answer.status_code, answer.text, gateway.log())
    assert len(answer.json()["choices"]) == 1
    return answer


def test_when_one_router_dies_the_other_routes(engines: list[CpuEngine]) -> None:
    with routers(engines, 2) as both:
        for dies, survives in ((0, 1), (1, 0)):
            # a gateway of its own: for its fail_timeout one would still pass over the router that has come back
            with NginxProcess(addresses(urls(both), [one.url for one in engines])) as gateway:
                both[dies].kill()
                before = both[survives].metric("kvroute_route_requests_total")
                for seed in range(3):
                    assert "x-kvroute-fallback" not in ask(gateway, seed).headers
                assert both[survives].metric("kvroute_route_requests_total") == before + 3
                both[dies].start()
                both[dies].wait_until_ready()


def test_without_any_router_requests_are_answered_and_routed_again_once_one_is_back(engines: list[CpuEngine]) -> None:
    with routers(engines, 2) as both, NginxProcess(addresses(urls(both), [one.url for one in engines])) as gateway:
        for one in both:
            one.kill()
        for seed in range(6):
            answer = ask(gateway, seed)
            assert answer.headers["x-kvroute-fallback"] == "unreachable"
            assert "x-kvroute-instance" not in answer.headers
        wait_until(lambda: sum(one["fallback"] == "unreachable" for one in gateway.requests()) == 6, 5.0, gateway.log)
        both[1].start()
        both[1].wait_until_ready()
        wait_until(lambda: "x-kvroute-fallback" not in ask(gateway).headers, 10.0, gateway.log)


def test_hanging_routers_cost_a_bounded_time(engines: list[CpuEngine]) -> None:
    with (
        routers(engines, 2) as both,
        NginxProcess(addresses(urls(both), [one.url for one in engines]), changes={}) as gateway,
    ):
        for one in both:
            one.pause()
        for seed in range(4):
            began = time.monotonic()
            answer = ask(gateway, seed)
            assert time.monotonic() - began < BOUND_S
            assert answer.headers["x-kvroute-fallback"] in ("slow", "unreachable")
        for one in both:
            one.resume()
        wait_until(lambda: "x-kvroute-fallback" not in ask(gateway).headers, 30.0, gateway.log)


def test_a_router_that_hangs_after_it_chose_delays_no_answer(engines: list[CpuEngine]) -> None:
    changes = {before: after for before, after in PATIENT.items() if "100ms" not in before}  # that of reports stays
    with (
        cpu_engine("vllm", **{**HASHES, "decode_us": 100_000.0}) as slow,
        routers([slow], 1) as one,
        NginxProcess(addresses(urls(one), [slow.url]), changes=changes) as gateway,
        gateway.http.stream("POST", "/v1/completions", json=completion(prompt(1), stream=True, max_tokens=8)) as answer,
    ):
        assert "x-kvroute-fallback" not in answer.headers
        pieces = answer.iter_raw()
        next(pieces)
        one[0].pause()
        assert b"".join(pieces).endswith(b"data: [DONE]\n\n")


def test_a_dead_engines_requests_go_to_another(engines: list[CpuEngine]) -> None:
    process = EngineProcess("--face", "vllm", "--prefill-us", "0", "--decode-us", "0")
    process.use_events = False
    slow_polls = {"load_interval_s": 60, "discovery_interval_s": 60}  # the router must not see it first
    try:
        process.start()
        known = [*settings(engines[:1]), instance("dies", process)]
        with (
            router(known, polling=slow_polls) as one,
            NginxProcess(addresses(urls([one]), [process.url, engines[0].url])) as gateway,
        ):
            one.wait_until_ready()
            fresh = iter(range(1000, 2000))
            wait_until(lambda: ask(gateway, next(fresh)).headers["x-kvroute-instance"] == "dies", 10.0, gateway.log)
            process.stop(signal.SIGKILL)
            seen = set()
            for seed in range(8):
                answer = ask(gateway, 100 + seed)
                assert answer.headers["x-kvroute-instance"] == "vllm-0"
                seen.add(answer.headers["x-kvroute-request-id"])
            assert len(seen) == 8
            wait_until(lambda: any(process.url in entry["tried"] for entry in gateway.requests()), 5.0, gateway.log)
            one.kill()
            for seed in range(6):
                assert ask(gateway, seed).headers["x-kvroute-fallback"] == "unreachable"
    finally:
        process.close()


def test_when_every_engine_is_dead_the_error_has_the_openai_form(engines: list[CpuEngine]) -> None:
    nobody = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
    known = [{"id": f"dead-{n}", "engine": "vllm", "model": "tiny", "url": url} for n, url in enumerate(nobody)]
    with router(known) as one, NginxProcess(addresses(urls([one]), nobody)) as gateway:
        one.wait(lambda: one.http.get("/healthz").status_code == 200)
        answer = gateway.http.post("/v1/completions", json=completion(prompt(1)))
        assert answer.status_code == 502
        assert answer.json()["error"]["type"] == "server_error"
        assert answer.json()["error"]["code"] == "engine_failed"
        assert gateway.http.get("/v1/models").status_code == 502


def test_a_killed_worker_is_replaced(engines: list[CpuEngine]) -> None:
    with routers(engines, 1) as one, NginxProcess(addresses(urls(one), [e.url for e in engines])) as gateway:
        before = set(gateway.workers())
        for worker in before:
            os.kill(worker, signal.SIGKILL)
        wait_until(lambda: not before & set(gateway.workers()), 5.0, gateway.log)
        with httpx.Client(base_url=gateway.url, timeout=10.0, trust_env=False) as client:
            answer = client.post("/v1/completions", json=completion(prompt(2)))
        assert answer.status_code == 200
        assert "x-kvroute-fallback" not in answer.headers


@pytest.mark.parametrize("where", ["environment", "file"])
def test_the_token_opens_the_router(engines: list[CpuEngine], where: str) -> None:
    with tempfile.NamedTemporaryFile("w", prefix="kvroute-token-") as file:
        file.write("open-sesame-1\n")
        file.flush()
        Path(file.name).chmod(0o644)  # the workers are another user
        name = "KVROUTE_TOKEN_FILE" if where == "file" else "KVROUTE_AUTH__TOKEN"
        check_token(engines, {name: file.name if where == "file" else "open-sesame-1"})


def check_token(engines: list[CpuEngine], given: dict[str, str]) -> None:
    with routers(engines, 1, auth={"token": "open-sesame-1"}) as one:
        at = addresses(urls(one), [e.url for e in engines])
        with NginxProcess(at, environment=given) as gateway:
            answer = ask(gateway)
            assert "x-kvroute-fallback" not in answer.headers, gateway.log()
            name = "kvroute_delivered_prompt_tokens_total"
            wait_until(lambda: one[0].metric(name) == 100, 5.0, gateway.log)
        with NginxProcess(at) as gateway:
            assert ask(gateway).headers["x-kvroute-fallback"] == "token"


GARBAGE = {
    "not JSON": (200, b"hello", "garbage"),
    "no fields": (200, b"{}", "garbage"),
    "a url of another kind": (200, b'{"url": "file:///etc/passwd", "request_id": "a"}', "garbage"),
    "a url with a variable": (200, b'{"url": "http://$http_evil/", "request_id": "a"}', "garbage"),
    "an id that leaves its path": (200, b'{"url": "http://127.0.0.1:1", "request_id": "../../x"}', "garbage"),
    "types": (200, b'{"url": ["http://x"], "request_id": {}, "headers": 1}', "garbage"),
    "more than fits": (200, b'{"url": "' + b"x" * 900_000 + b'"}', "garbage"),
    "an error": (500, b"oops", "router-500"),
    "no eligible instance": (503, b'{"status": 503}', "unavailable"),
    "another 404": (404, b"nothing here", "router-404"),
    "a redirection": (302, b"", "router-302"),
}


@pytest.mark.parametrize(("status", "body", "reason"), GARBAGE.values(), ids=GARBAGE.keys())
def test_what_is_no_answer_of_a_router_is_not_followed(
    engines: list[CpuEngine], status: int, body: bytes, reason: str
) -> None:
    with (
        strange_router(status, body) as first,
        strange_router(status, body) as second,
        NginxProcess(addresses([first, second], [engine.url for engine in engines])) as gateway,
    ):
        assert ask(gateway).headers["x-kvroute-fallback"] == reason, gateway.log()


@contextmanager
def strange_router(status: int, body: bytes) -> Iterator[str]:
    """Something else at the router's address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join(5.0)
