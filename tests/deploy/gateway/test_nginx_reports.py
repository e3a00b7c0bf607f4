"""What the nginx gateway tells a router of engines that fail, and of clients that leave."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import httpx
import pytest

from tests.deploy.gateway import failing_engines as engines
from tests.deploy.gateway.nginx_process import INSTALL, IS_INSTALLED, PATIENT, NginxProcess
from tests.deploy.gateway.recording_router import RecordingRouter, recording_router
from tests.deploy.gateway.stack import HASHES, addresses, completion, prompt
from tests.support.cpu_engine import CpuEngine, cpu_engine
from tests.support.service import wait_until

pytestmark = [
    pytest.mark.skipif(not IS_INSTALLED, reason=INSTALL),
    pytest.mark.xdist_group("nginx_failures"),
]
Failing = Callable[[], AbstractContextManager[str]]
SHORT = PATIENT | {"proxy_read_timeout 600s": "proxy_read_timeout 1s"}


def of(behaviour: engines.Behaviour) -> Failing:
    return lambda: engines.failing_engine(behaviour)


@pytest.fixture(scope="module")
def lives() -> Iterator[CpuEngine]:
    """An engine that answers."""
    with cpu_engine("vllm", **HASHES) as engine:
        yield engine


@contextmanager
def gateway(*urls: str, changes: dict[str, str] = SHORT) -> Iterator[tuple[NginxProcess, RecordingRouter]]:
    with (
        recording_router(urls) as router,
        NginxProcess(addresses([router.url], list(urls[::-1])), changes=changes) as nginx,
    ):
        yield nginx, router


NO_ANSWER: dict[str, tuple[Failing, dict[str, Any]]] = {
    "refused": (engines.refusing, {"kind": "connect", "detail": "no connection"}),
    "silent host": (engines.silent_host, {"kind": "connect", "detail": "no connection in time"}),
    "closed": (of(engines.closes), {"kind": "connect", "detail": "the connection was closed before an answer"}),
    "502": (of(engines.says(502)), {"kind": "status", "status": 502}),
    "503": (of(engines.says(503)), {"kind": "status", "status": 503}),
    "500": (of(engines.says(500)), {"kind": "status", "status": 500}),
    "401": (of(engines.says(401)), {"kind": "status", "status": 401}),
    "404": (of(engines.says(404)), {"kind": "status", "status": 404}),
}


@pytest.mark.parametrize(("failing", "error"), NO_ANSWER.values(), ids=NO_ANSWER.keys())
def test_an_engine_that_fails_is_reported_and_the_next_one_answers(
    lives: CpuEngine, failing: Failing, error: dict[str, Any]
) -> None:
    with failing() as fails, gateway(fails, lives.url) as (nginx, router):
        began = time.monotonic()
        answer = nginx.http.post("/v1/completions", json=completion(prompt(1)))
        assert answer.status_code == 200, (answer.text, nginx.log())
        assert time.monotonic() - began < 5.0
        assert answer.headers["x-kvroute-request-id"] == "id-1"
        wait_until(lambda: len(router.told) == 2, 5.0, nginx.log)
        assert sorted(router.errors()) == sorted([(fails, error), (lives.url, None)]), nginx.log()
        assert dict(router.told)[lives.url]["output_tokens"] == 4


@pytest.mark.parametrize("status", [401, 404, 500])
def test_what_two_engines_say_alike_is_what_the_client_hears(lives: CpuEngine, status: int) -> None:
    with (
        engines.failing_engine(engines.says(status)) as first,
        engines.failing_engine(engines.says(status)) as second,
        gateway(first, second, lives.url) as (nginx, router),
    ):
        answer = nginx.http.post("/v1/completions", json=completion(prompt(1)))
        assert answer.status_code == status, nginx.log()
        assert answer.headers["x-kvroute-request-id"] == "id-1", "the second engine's own answer"
        wait_until(lambda: len(router.told) == 2, 5.0, nginx.log)
        assert {url for url, _ in router.errors()} == {first, second}


def test_every_engine_that_was_tried_is_reported(lives: CpuEngine) -> None:
    with (
        engines.refusing() as first,
        engines.failing_engine(engines.says(503)) as second,
        gateway(first, second, lives.url) as (nginx, router),
    ):
        assert nginx.http.post("/v1/completions", json=completion(prompt(2))).status_code == 200
        wait_until(lambda: len(router.told) == 3, 5.0, nginx.log)
        kinds = {url: error and error["kind"] for url, error in router.errors()}
        assert kinds == {first: "connect", second: "status", lives.url: None}


ANSWERED: dict[str, tuple[engines.Behaviour, dict[str, Any]]] = {
    "hangs": (engines.hangs, {"kind": "timeout", "detail": "no answer in time"}),
    "its own 504": (engines.says(504), {"kind": "status", "status": 504}),
    "500": (engines.says(500), {"kind": "status", "status": 500}),
    "400": (engines.says(400), {"kind": "status", "status": 400}),
    "breaks off": (engines.breaks_off, {"kind": "connect", "detail": "answer broke off"}),
    "reset": (engines.resets, {"kind": "connect", "detail": "answer broke off"}),
    "after headers": (engines.breaks_off_after_headers, {"kind": "connect", "detail": "answer broke off"}),
    "in part": (engines.answers_in_part, {"kind": "connect", "detail": "answer broke off"}),
}


@pytest.mark.parametrize(("behaviour", "error"), ANSWERED.values(), ids=ANSWERED.keys())
def test_an_engine_that_fails_where_no_other_can_help_is_reported(
    behaviour: engines.Behaviour, error: dict[str, Any]
) -> None:
    with engines.failing_engine(behaviour) as fails, gateway(fails) as (nginx, router):
        try:
            nginx.http.post("/v1/completions", json=completion(prompt(3), stream=True))
        except httpx.RemoteProtocolError:
            pass  # the answer is cut off
        wait_until(lambda: len(router.told) == 1, 5.0, nginx.log)
        assert router.errors() == [(fails, error)], nginx.log()


def test_a_silence_within_an_answer_is_a_timeout() -> None:
    longer = PATIENT | {"proxy_read_timeout 600s": "proxy_read_timeout 6s"}
    with engines.failing_engine(engines.falls_silent) as fails, gateway(fails, changes=longer) as (nginx, router):
        with pytest.raises(httpx.RemoteProtocolError):
            nginx.http.post("/v1/completions", json=completion(prompt(4), stream=True))
        wait_until(lambda: len(router.told) == 1, 5.0, nginx.log)
        error = {"kind": "timeout", "detail": "the answer broke off after a silence"}
        assert router.errors() == [(fails, error)], nginx.log()


@pytest.mark.parametrize("behaviour", [engines.hangs, engines.falls_silent], ids=["before", "within"])
def test_a_client_that_leaves_is_never_the_engines_failure(behaviour: engines.Behaviour) -> None:
    with engines.failing_engine(behaviour) as waits, gateway(waits, changes=PATIENT) as (nginx, router):
        body = completion(prompt(5), stream=True)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{nginx.url}/v1/completions", json=body, timeout=httpx.Timeout(10.0, read=1.0), trust_env=False)
        wait_until(lambda: len(router.told) == 1, 5.0, nginx.log)
        assert router.errors() == [(waits, {"kind": "aborted"})], nginx.log()


def test_a_stream_that_comes_to_its_end_is_no_failure() -> None:
    with (
        cpu_engine("vllm", **{**HASHES, "decode_us": 20_000.0}) as slow,
        gateway(slow.url, changes=PATIENT) as (nginx, router),
    ):
        body = completion(prompt(6), stream=True, max_tokens=50)
        assert nginx.http.post("/v1/completions", json=body).text.endswith("data: [DONE]\n\n")
        wait_until(lambda: len(router.told) == 1, 5.0, nginx.log)
        assert router.errors() == [(slow.url, None)]
