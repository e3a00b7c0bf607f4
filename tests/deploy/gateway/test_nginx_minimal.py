"""The least that makes an nginx ask kvroute: the real nginx with those files, a real router, CPU engines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.gateway.conftest import Fleet
from tests.deploy.gateway.nginx_process import GATEWAY, INSTALL, IS_INSTALLED, NginxProcess
from tests.deploy.gateway.stack import address, cached, completion, prompt, router, urls
from tests.support.ports import free_port

pytestmark = [
    pytest.mark.skipif(not IS_INSTALLED, reason=INSTALL),
    pytest.mark.xdist_group("nginx"),  # one process sets up the fleet once
]
MINIMAL = GATEWAY / "minimal"
DOCUMENT = Path(__file__).parents[3] / "docs" / "gateway.md"
OWN_PLACES = {
    "events {}": "pid /tmp/pid; error_log stderr;\nevents {}",
    "http {": "http {\n"
    + "".join(f"{name}_temp_path /tmp/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    + "access_log off;",
    "proxy_connect_timeout 100ms": "proxy_connect_timeout 5s",
    "proxy_read_timeout 500ms": "proxy_read_timeout 5s",
}
"""Beside another nginx and as any user. Time limits are not what is tested: a loaded machine must not decide."""


def nginx(shared: Fleet, asked: str) -> NginxProcess:
    named = {f"127.0.0.1:800{n}": address(shared.engines[f"vllm-{n}"].url) for n in (0, 1)}
    return NginxProcess(named | {"127.0.0.1:8900": asked}, OWN_PLACES, source=MINIMAL, alive="/v1/models")


@pytest.fixture(scope="module")
def gateway(shared: Fleet) -> Iterator[NginxProcess]:
    with nginx(shared, address(urls([shared.router])[0])) as process:
        yield process


def test_nginx_finds_no_fault_in_it(gateway: NginxProcess) -> None:
    found = gateway.check()
    assert found.returncode == 0, found.stderr
    assert "warn" not in found.stderr


@pytest.mark.parametrize("name", ["vllm-0", "vllm-1", "sglang-0"])
def test_a_request_goes_to_the_engine_that_holds_its_prefix(shared: Fleet, gateway: NginxProcess, name: str) -> None:
    tokens = prompt(len(name) * 1000 + ord(name[-1]), 160)
    shared.warm(name, tokens[:120])
    answer = gateway.http.post("/v1/completions", json=completion(tokens))
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-kvroute-url"] == shared.engines[name].url
    assert cached(answer.json()) >= 112


def test_a_chat_is_streamed_from_the_engine_that_was_chosen(shared: Fleet, gateway: NginxProcess) -> None:
    talk = [{"role": "user", "content": "Tell me of lighthouses. " * 20}]
    body = {"model": "tiny", "messages": talk, "max_tokens": 4, "stream": True}
    first = gateway.http.post("/v1/chat/completions", json=body)
    shared.settle()
    second = gateway.http.post("/v1/chat/completions", json=body)
    assert second.text.endswith("data: [DONE]\n\n")
    assert second.headers["x-kvroute-url"] == first.headers["x-kvroute-url"]


def test_the_rank_is_passed_and_never_the_clients_own(shared: Fleet, gateway: NginxProcess) -> None:
    assert shared.reused_by_rank(gateway.http, 5020) == [64, 64]


@pytest.mark.parametrize(
    "body",
    [
        json.dumps(completion(prompt(5030)) | {"exclude": ["vllm-0", "vllm-1", "sglang-0"]}),  # 503: nobody is left
        json.dumps(completion([prompt(5031), prompt(5032)])),  # 422: two prompts
    ],
    ids=["none is eligible", "several prompts"],
)
def test_what_the_router_does_not_answer_goes_to_any_engine(gateway: NginxProcess, body: str) -> None:
    answer = gateway.http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 200, answer.text
    assert "x-kvroute-url" not in answer.headers


def test_it_goes_on_without_a_router(shared: Fleet) -> None:
    with nginx(shared, f"127.0.0.1:{free_port()}") as gateway:
        answer = gateway.http.post("/v1/completions", json=completion(prompt(5040)))
        assert answer.status_code == 200, answer.text
        assert "x-kvroute-url" not in answer.headers


def test_an_engine_that_cannot_be_reached_is_replaced_by_any(shared: Fleet) -> None:
    gone = f"127.0.0.1:{free_port()}"
    with router([{"id": "gone", "engine": "vllm", "model": "tiny", "url": f"http://{gone}"}]) as process:
        process.wait_until_ready()
        assert process.route([1, 2, 3], model="tiny")["instance"] == "gone"
        with nginx(shared, address(urls([process])[0])) as gateway:
            answer = gateway.http.post("/v1/completions", json=completion(prompt(5050)))
            assert answer.status_code == 200, answer.text
            assert "x-kvroute-url" not in answer.headers
            assert f"http://{gone}/v1/completions" in gateway.log()


def test_the_inner_path_cannot_be_asked(gateway: NginxProcess) -> None:
    assert gateway.http.post("/_kvroute", json={}).status_code == 404


@pytest.mark.parametrize(("name", "language"), [("nginx.conf", "nginx"), ("ask.js", "js")])
def test_the_document_shows_the_files_as_they_are(name: str, language: str) -> None:
    assert f"```{language}\n{(MINIMAL / name).read_text()}```\n" in DOCUMENT.read_text()
