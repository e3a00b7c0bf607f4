"""Text in a routing request: tokenised by the model's own engines, or routed without."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from index.worker import EngineKind
from tests.support.engine_events import prompt, sglang_stored, vllm_stored
from tests.support.fake_engine import HTML, FakeEngine, Reply
from tests.support.fleet import fleet, instance, publish
from tests.support.publisher import Publisher
from tests.support.service import Running, serving, wait_until

ASKED = prompt(1)
TEXT = "What is a KV cache? " * 8


def ask(run: Running, **fields: Any) -> httpx.Response:
    return run.http.post("/route", json={"model": "m", "token_ids": ASKED, **fields})


def series(run: Running, *names: str) -> dict[str, float]:
    """All series of the service's own counters whose name begins so."""
    lines = [line for line in run.http.get("/metrics").text.splitlines() if line.startswith(names)]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


@pytest.mark.parametrize("kind", list(EngineKind))
def test_text_is_tokenised_by_an_engine_of_the_model(kind: EngineKind) -> None:
    chat = [{"role": "user", "content": TEXT}]
    store = vllm_stored if kind is EngineKind.VLLM else sglang_stored
    with (
        Publisher() as publisher,
        FakeEngine(kind) as engine,
        serving(fleet(instance("a", publisher, engine), instance("b", server=engine))) as run,
    ):
        publish(run, "a", publisher, store(engine.tokens(TEXT)), store(engine.chat_tokens(chat)))
        wait_until(lambda: all(run.instance(name)["version"] for name in "ab"), 5)
        for tokens, fields in ((engine.tokens(TEXT), {"prompt": TEXT}), (engine.chat_tokens(chat), {"messages": chat})):
            answer = run.http.post("/route", json={"model": "m", **fields}).json()
            assert (answer["instance"], answer["reason"]) == ("a", "prefix")
            assert answer["prompt_tokens"] == len(tokens)
            assert answer["matched_tokens"] >= len(tokens) // 16 * 16
            found = run.http.post("/index/match", json={"model": "m", **fields}).json()
            assert found["prompt_tokens"] == len(tokens)
            assert found["candidates"][0]["matched_tokens"] == answer["matched_tokens"]


def test_a_list_of_ids_as_prompt_is_not_tokenised() -> None:
    with FakeEngine(EngineKind.VLLM) as engine, serving(fleet(instance("a", server=engine))) as run:
        answer = run.http.post("/route", json={"model": "m", "prompt": ASKED}).json()
        assert answer["prompt_tokens"] == 64
        assert engine.calls["/tokenize"] == 0


def test_another_instance_is_asked_when_one_cannot_tokenise() -> None:
    with FakeEngine(EngineKind.VLLM) as broken, FakeEngine(EngineKind.VLLM) as engine:
        broken.spoil(HTML, "/tokenize")
        with serving(fleet(instance("a", server=broken), instance("b", server=engine))) as run:
            wait_until(lambda: all(run.instance(name)["version"] for name in "ab"), 5)
            for _ in range(8):
                answer = run.http.post("/route", json={"model": "m", "prompt": TEXT, "strict": True})
                assert answer.json()["prompt_tokens"] == len(engine.tokens(TEXT))
            assert engine.calls["/tokenize"] == 8
            assert run.metric('kvroute_tokenise_failures_total{kind="engine",model="m"}') == 0


def test_text_that_no_engine_tokenises_is_routed_by_load_or_refused_when_strict() -> None:
    slow = Reply('{"tokens": [1]}', delay_s=10)
    refusing = Reply('{"error": {"message": "chat template failed"}}', 400)
    failures = [(HTML, "engine", 504), (slow, "timeout", 504), (refusing, "template", 422)]
    limits = {"route_timeout_s": 3, "tokenise_timeout_s": 2}
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    with FakeEngine(EngineKind.VLLM) as engine, serving(fleet(instance("a", server=engine), limits=limits)) as run:
        for reply, kind, status in failures:
            engine.spoil(reply, "/tokenize")
            answer = run.http.post("/route", json=chat)
            body = answer.json()
            assert (answer.status_code, body["reason"], body["prompt_tokens"]) == (200, "fallback", None)
            assert (body["instance"], body["matched_tokens"]) == ("a", 0)
            assert "could not be tokenised" in body["detail"]
            assert run.metric(f'kvroute_tokenise_failures_total{{kind="{kind}",model="m"}}') == 1
            strict = run.http.post("/route", json=chat | {"strict": True})
            assert (strict.status_code, strict.headers["content-type"]) == (status, "application/problem+json")
            assert run.http.post("/index/match", json=chat).status_code == status
        assert series(run, "kvroute_prompt_tokens_total") == {}
        finished = f"/requests/{body['request_id']}/finished"
        assert run.http.post(finished, json={"cached_tokens": 7}).status_code == 204
        assert series(run, "kvroute_delivered_tokens_total") == {}  # of how many is not known


def test_a_hung_engine_does_not_delay_requests_with_token_ids() -> None:
    with (
        FakeEngine(EngineKind.VLLM) as engine,
        Publisher() as publisher,
        serving(fleet(instance("a", publisher, engine), instance("b"))) as run,
    ):
        publish(run, "a", publisher, vllm_stored(ASKED))
        wait_until(lambda: run.instance("a")["version"] is not None, 5)
        usual = _slowest(run)
        engine.spoil(Reply("{}", delay_s=1.5), "/tokenize", "/metrics")
        with ThreadPoolExecutor(8) as pool:
            texts = [pool.submit(httpx.post, run.url + "/route", json={"model": "m", "prompt": "x"}, timeout=20)
                     for _ in range(8)]  # fmt: skip
            time.sleep(0.2)
            assert _slowest(run) < max(0.5, 10 * usual)
            assert not all(text.done() for text in texts)
            engine.mend()
            assert {text.result().status_code for text in texts} == {200}


def _slowest(run: Running) -> float:
    times = []
    for _ in range(50):
        began = time.perf_counter()
        assert ask(run).json()["instance"] == "a"
        times.append(time.perf_counter() - began)
    return max(times)


def test_a_request_that_waits_for_an_engine_does_not_outlive_the_fleets_changes() -> None:
    with FakeEngine(EngineKind.VLLM) as engine, serving(fleet(instance("a", server=engine), instance("b"))) as run:
        wait_until(lambda: run.instance("a")["version"] is not None, 5)
        engine.spoil(Reply(json.dumps({"tokens": ASKED}), delay_s=0.5), "/tokenize")
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(httpx.post, run.url + "/route", json={"model": "m", "prompt": "x"}, timeout=20)
            wait_until(lambda: engine.calls["/tokenize"] > 0, 5)
            run.http.delete("/instances/a").raise_for_status()
            assert waiting.result().json()["instance"] == "b"
            waiting = pool.submit(httpx.post, run.url + "/route", json={"model": "m", "prompt": "x"}, timeout=20)
            run.http.delete("/instances/b").raise_for_status()
            assert waiting.result().status_code in (200, 404)
        assert 'model="m"' not in run.http.get("/metrics").text


def test_a_stopping_service_answers_what_it_has_begun() -> None:
    answers: list[httpx.Response] = []
    with (
        FakeEngine(EngineKind.VLLM) as engine,
        serving(fleet(instance("a", server=engine))) as run,
    ):
        wait_until(lambda: run.instance("a")["version"] is not None, 5)
        engine.spoil(Reply(json.dumps({"tokens": ASKED}), delay_s=0.5), "/tokenize")
        url = run.url + "/route"
        asking = threading.Thread(
            target=lambda: answers.append(httpx.post(url, json={"model": "m", "prompt": "x"}, timeout=20))
        )
        asking.start()
        wait_until(lambda: engine.calls["/tokenize"] > 0, 5)
        asking.join(10)
    assert [answer.status_code for answer in answers] == [200]
