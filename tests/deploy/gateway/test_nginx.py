"""The nginx gateway: the real nginx with its own files in front of a real router and CPU engines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.deploy.gateway.conftest import Fleet
from tests.deploy.gateway.nginx_process import INSTALL, IS_INSTALLED, NginxProcess
from tests.deploy.gateway.stack import HASHES, addresses, cached, completion, prompt, urls
from tests.support.cpu_engine import cpu_engine
from tests.support.service import wait_until

pytestmark = [
    pytest.mark.skipif(not IS_INSTALLED, reason=INSTALL),
    pytest.mark.xdist_group("nginx"),  # one process sets it up once
]
ENGINES = ("vllm-0", "vllm-1", "sglang-0")


@pytest.fixture(scope="module")
def gateway(shared: Fleet) -> Iterator[NginxProcess]:
    """nginx before the shared fleet."""
    with NginxProcess(addresses(urls([shared.router]), [shared.engines[name].url for name in ENGINES])) as process:
        yield process


def delivered(shared: Fleet, model: str) -> float:
    return shared.router.metric(f'kvroute_delivered_tokens_total{{model="{model}"}}')


@pytest.mark.parametrize("name", ENGINES)
def test_a_request_goes_to_the_engine_that_holds_its_prefix(shared: Fleet, gateway: NginxProcess, name: str) -> None:
    tokens = prompt(ENGINES.index(name), 160)
    shared.warm(name, tokens[:120])
    before = delivered(shared, "tiny")
    answer = gateway.http.post("/v1/completions", json=completion(tokens))
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-kvroute-instance"] == name
    assert answer.headers["x-kvroute-reusable-tokens"] == str(cached(answer.json())) != "0"
    assert "x-kvroute-fallback" not in answer.headers
    assert len(answer.headers["x-kvroute-request-id"]) == 26
    wait_until(lambda: delivered(shared, "tiny") == before + cached(answer.json()), 5.0, gateway.log)


def test_a_chat_goes_where_it_was_before(shared: Fleet, gateway: NginxProcess) -> None:
    talk = [
        {"role": "system", "content": "You know a lot about lighthouses. " * 8},
        {"role": "user", "content": "Tell."},
    ]
    body = {"model": "tiny", "messages": talk, "max_completion_tokens": 4}
    first = gateway.http.post("/v1/chat/completions", json=body)
    assert first.status_code == 200, first.text
    shared.settle()
    second = gateway.http.post("/v1/chat/completions", json=body)
    assert second.headers["x-kvroute-instance"] == first.headers["x-kvroute-instance"]
    assert int(second.headers["x-kvroute-reusable-tokens"]) == cached(second.json()) > 0


def test_a_stream_arrives_while_the_engine_still_computes(shared: Fleet, gateway: NginxProcess) -> None:
    body = completion(prompt(10), model="slow", stream=True, max_tokens=20)
    with gateway.http.stream("POST", "/v1/completions", json=body) as answer:
        pieces = answer.iter_raw()
        assert next(pieces).startswith(b"data: {")
        assert shared.engines["slow"].busy() == 1
        wait_until(lambda: prefill_in_flight(shared, "slow") == 0, 5.0, gateway.log)  # the first token is reported
        assert shared.engines["slow"].busy() == 1
        rest = b"".join(pieces)
    assert rest.endswith(b"data: [DONE]\n\n")


def prefill_in_flight(shared: Fleet, model: str) -> int:
    load = shared.router.route([1], model=model)["candidates"][0]["load"]
    tokens: int = load["inflight_prefill_tokens"]
    return tokens


def test_the_usage_at_the_end_of_a_stream_is_reported(shared: Fleet, gateway: NginxProcess) -> None:
    tokens = prompt(11, 64)
    shared.warm("slow", tokens)
    before = delivered(shared, "slow")
    options = {"include_usage": True}
    body = completion(tokens, model="slow", stream=True, stream_options=options, max_tokens=2)
    assert '"cached_tokens":48' in gateway.http.post("/v1/completions", json=body).text
    wait_until(lambda: delivered(shared, "slow") == before + 48, 5.0, gateway.log)


def test_a_client_that_leaves_ends_the_request(shared: Fleet, gateway: NginxProcess) -> None:
    body = completion(prompt(12), model="slow", stream=True, max_tokens=2000)
    with gateway.http.stream("POST", "/v1/completions", json=body) as answer:
        next(answer.iter_raw())
    wait_until(lambda: shared.engines["slow"].busy() == 0, 10.0, gateway.log)


def test_a_usage_that_comes_in_many_packets_is_read(shared: Fleet, gateway: NginxProcess) -> None:
    tokens = [prompt(13, 64)]
    before = shared.router.metric('kvroute_delivered_prompt_tokens_total{model="tiny"}')
    body = completion(tokens, return_token_ids=True, max_tokens=3000)
    answer = gateway.http.post("/v1/completions", json=body)
    assert len(answer.content) > 20_000
    whole = before + 64
    wait_until(
        lambda: shared.router.metric('kvroute_delivered_prompt_tokens_total{model="tiny"}') == whole, 5.0, gateway.log
    )


def test_the_data_parallel_rank_is_passed_and_never_the_clients_own(shared: Fleet, gateway: NginxProcess) -> None:
    assert shared.reused_by_rank(gateway.http, 20) == [64, 64]


def test_nothing_of_a_client_steers_the_gateway(shared: Fleet, gateway: NginxProcess) -> None:
    tokens = prompt(30)
    shared.warm("vllm-1", tokens)
    forged = {
        f"x-kvroute-{name}": value
        for name, value in {"url": "http://127.0.0.1:1", "instance": "x", "fallback": "y", "request-id": "z"}.items()
    }
    body = completion(tokens, exclude=["vllm-1"], candidates=["vllm-0"], dry_run=True, selector={"zone": "b"})
    before = shared.router.metric("kvroute_route_requests_total")
    query = "?kvroute_url=http://127.0.0.1:1&router=127.0.0.1:1&id=1&what=finished"
    answer = gateway.http.post(f"/v1/completions{query}", json=body, headers=forged)
    assert answer.headers["x-kvroute-instance"] == "vllm-1"
    assert len(answer.headers["x-kvroute-request-id"]) == 26
    assert "x-kvroute-fallback" not in answer.headers
    assert shared.router.metric("kvroute_route_requests_total") == before + 1


@pytest.mark.parametrize("path", ["route", "finished", "tell?router=127.0.0.1:1&id=1&what=x", ""])
def test_the_inner_paths_cannot_be_asked(gateway: NginxProcess, path: str) -> None:
    for method in ("GET", "POST"):
        answer = gateway.http.request(method, f"/_kvroute/{path}")
        assert answer.status_code == 404
        assert answer.json()["error"]["type"] == "invalid_request_error"


HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "not JSON": b"{",
    "null": b"null",
    "list": b"[]",
    "text": b'"x"',
    "number": b"1e999",
    "no model": b'{"prompt": "x"}',
    "model of a wrong type": b'{"model": {"a": 1}, "prompt": "x"}',
    "long model": json.dumps({"model": "x" * 100_000, "prompt": "y"}).encode(),
    "no prompt": b'{"model": "tiny"}',
    "empty prompt": b'{"model": "tiny", "prompt": ""}',
    "empty list": b'{"model": "tiny", "prompt": []}',
    "prompt of a wrong type": b'{"model": "tiny", "prompt": {"a": []}}',
    "mixed prompt": b'{"model": "tiny", "prompt": [1, "a", null]}',
    "huge ids": b'{"model": "tiny", "prompt": [1e300, -1, 99999999999999999999999]}',
    "messages of a wrong type": b'{"model": "tiny", "messages": [1, {}]}',
    "max_tokens of a wrong type": b'{"model": "tiny", "prompt": "x", "max_tokens": "many"}',
    "negative max_tokens": b'{"model": "tiny", "prompt": "x", "max_tokens": -5}',
    "lone surrogate": b'{"model": "tiny\\ud800", "prompt": "\\udfff"}',
    "not UTF-8": b'{"model": "tiny", "prompt": "\xff\xfe"}',
    "zero byte": b'{"model": "ti\\u0000ny", "prompt": "\\u0000"}',
    "deep list": b'{"model": "tiny", "prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep object": b'{"model": "tiny", "messages": [' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"]}",
    "prototype": b'{"model": "tiny", "prompt": "x", "__proto__": {"url": "http://x"}, "constructor": 1}',
    "large": b'{"model": "tiny", "prompt": "' + b"a" * 5_000_000 + b'"}',
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_no_body_makes_an_error_of_the_gateway(gateway: NginxProcess, path: str, body: bytes) -> None:
    answer = gateway.http.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 200 or 400 <= answer.status_code < 500, (answer.status_code, answer.text[:300])
    assert gateway.http.get("/healthz").status_code == 200


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_refused_as_the_openai_api_does(gateway: NginxProcess, chunked: bool) -> None:
    body = b'{"model": "tiny", "prompt": "' + b"a" * (17 << 20) + b'"}'
    content: Any = iter([body[: 9 << 20], body[9 << 20 :]]) if chunked else body
    with httpx.Client(base_url=gateway.url, timeout=20.0, trust_env=False) as client:
        answer = client.post("/v1/completions", content=content)
    assert (answer.status_code, answer.json()["error"]["message"]) == (413, "the body is too large")


def test_a_chunked_body_is_routed(shared: Fleet, gateway: NginxProcess) -> None:
    tokens = prompt(40)
    shared.warm("vllm-0", tokens)
    text = json.dumps(completion(tokens)).encode()
    answer = gateway.http.post("/v1/completions", content=iter([text[:50], text[50:]]))
    assert answer.headers["x-kvroute-instance"] == "vllm-0"


def test_of_a_model_that_the_router_does_not_know_the_engines_have_the_last_word(shared: Fleet) -> None:
    with cpu_engine("vllm", model="just-loaded", **HASHES) as knows:
        known = [shared.engines["vllm-0"].url, knows.url]
        with NginxProcess(addresses(urls([shared.router]), known)) as gateway:
            for seed in range(4):  # whichever engine is asked first
                answer = gateway.http.post("/v1/completions", json=completion(prompt(60 + seed), model="just-loaded"))
                assert answer.status_code == 200, (answer.text, gateway.log())
                assert answer.headers["x-kvroute-fallback"] == "unknown-model"
            answer = gateway.http.post("/v1/completions", json=completion([1], model="nobody's"))
            assert answer.status_code == 404
            assert answer.headers["x-kvroute-fallback"] == "unknown-model"
            assert "nobody's" in answer.text  # the engine's own words


def test_other_paths_and_methods(gateway: NginxProcess) -> None:
    assert gateway.http.get("/v1/models").json()["data"][0]["id"] == "tiny"
    assert gateway.http.get("/healthz").json() == {"status": "ok"}
    for method, path, status in (
        ("GET", "/v1/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/v1/embeddings", 404),
        ("GET", "/v1/completions/../../_kvroute/route", 404),
    ):
        answer = gateway.http.request(method, path)
        assert (answer.status_code, answer.json()["error"]["type"]) == (status, "invalid_request_error")


def test_a_session_header_is_the_routers_session(shared: Fleet, gateway: NginxProcess) -> None:
    session = {"X-Session-Id": "a session"}
    first = gateway.http.post("/v1/completions", json=completion(prompt(50, 8)), headers=session)
    before = shared.router.metric('kvroute_route_requests_total{model="tiny",reason="affinity"}')
    second = gateway.http.post("/v1/completions", json=completion(prompt(51, 8)), headers=session)
    assert second.headers["x-kvroute-instance"] == first.headers["x-kvroute-instance"]
    assert shared.router.metric('kvroute_route_requests_total{model="tiny",reason="affinity"}') == before + 1


def test_the_log_tells_each_request(gateway: NginxProcess) -> None:
    answer = gateway.http.post("/v1/completions", json=completion(prompt(60)))
    wanted = answer.headers["x-kvroute-request-id"]
    wait_until(lambda: any(one["request_id"] == wanted for one in gateway.requests()), 5.0, gateway.log)
    entry = next(one for one in gateway.requests() if one["request_id"] == wanted)
    assert (entry["status"], entry["method"], entry["fallback"]) == ("200", "POST", "")
    assert entry["instance"] == answer.headers["x-kvroute-instance"]
