"""The OpenAI routes of both faces over real HTTP."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from deploy.engine.settings import Face
from tests.support.cpu_engine import CpuEngine, cpu_engine
from tests.support.service import wait_until

PROMPT = list(range(1000, 1060))


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def face(request: pytest.FixtureRequest) -> Face:
    chosen: Face = request.param
    return chosen


@pytest.fixture(scope="module")
def engine(face: Face) -> Iterator[CpuEngine]:
    with cpu_engine(face, max_model_len=2000, adapters={"sql": "/adapters/sql"}) as running:
        yield running


def streamed(engine: CpuEngine, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream but for the closing one."""
    with engine.http.stream("POST", path, json={**body, "stream": True}) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


def test_a_completion_has_text_usage_and_a_reason(engine: CpuEngine) -> None:
    answer = engine.complete(PROMPT, max_tokens=5)
    choice, usage = answer["choices"][0], answer["usage"]
    assert (answer["object"], choice["finish_reason"], choice["index"]) == ("text_completion", "length", 0)
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (60, 5, 65)
    assert choice["text"] == engine.engine.tokenizer.decode(choice["token_ids"])
    assert choice["prompt_token_ids"] == PROMPT


def test_a_stream_says_what_the_whole_answer_says(engine: CpuEngine) -> None:
    whole = engine.complete(PROMPT, max_tokens=6)
    body = {"prompt": PROMPT, "max_tokens": 6, "ignore_eos": True, "stream_options": {"include_usage": True}}
    *parts, last = streamed(engine, "/v1/completions", body)
    assert "".join(part["choices"][0]["text"] for part in parts) == whole["choices"][0]["text"]
    assert [part["choices"][0]["finish_reason"] for part in parts] == [None] * 5 + ["length"]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 6
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] > 40


def test_usage_can_be_in_every_part_of_a_stream(engine: CpuEngine) -> None:
    body = {"prompt": PROMPT, "max_tokens": 3, "ignore_eos": True, "stream_options": {"continuous_usage_stats": True}}
    parts = streamed(engine, "/v1/completions", body)
    assert [part["usage"]["total_tokens"] for part in parts] == [61, 62, 63]


def test_a_chat_streams_a_role_and_then_its_text(engine: CpuEngine) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "ignore_eos": True}
    whole = engine.http.post("/v1/chat/completions", json=body).json()
    first, *parts = streamed(engine, "/v1/chat/completions", body)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(p["choices"][0]["delta"]["content"] for p in parts) == whole["choices"][0]["message"]["content"]
    assert (whole["object"], first["object"]) == ("chat.completion", "chat.completion.chunk")


def test_outputs_depend_on_the_prompt_and_the_seed_only(face: Face, engine: CpuEngine) -> None:
    tokens = engine.complete(PROMPT, max_tokens=8)["choices"][0]["token_ids"]
    assert engine.complete(PROMPT, max_tokens=8)["choices"][0]["token_ids"] == tokens
    assert engine.complete(PROMPT + tokens[:3], max_tokens=5)["choices"][0]["token_ids"] == tokens[3:]
    with cpu_engine(face) as same, cpu_engine(face, seed=1) as other:
        assert same.complete(PROMPT, max_tokens=8)["choices"][0]["token_ids"] == tokens
        assert other.complete(PROMPT, max_tokens=8)["choices"][0]["token_ids"] != tokens


def test_a_stop_text_ends_the_answer(engine: CpuEngine) -> None:
    text = engine.complete(PROMPT, max_tokens=20)["choices"][0]["text"]
    stop = text.split()[5]
    choice = engine.complete(PROMPT, max_tokens=20, stop=[stop])["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (text[: text.index(stop)], "stop")
    assert stop in (choice.get("stop_reason"), choice.get("matched_stop"))


def test_the_end_token_comes_unless_it_is_ignored(face: Face) -> None:
    with cpu_engine(face, mean_output_tokens=5) as engine:
        free = engine.complete(PROMPT, max_tokens=200, ignore_eos=False)
        assert free["choices"][0]["finish_reason"] == "stop"
        assert free["usage"]["completion_tokens"] < 200
        late = engine.complete(PROMPT, max_tokens=200, ignore_eos=False, min_tokens=50)
        assert late["usage"]["completion_tokens"] >= 50
        assert engine.complete(PROMPT, max_tokens=200)["usage"]["completion_tokens"] == 200


def test_several_prompts_give_as_many_choices(engine: CpuEngine) -> None:
    both = engine.complete([PROMPT, PROMPT[:20]], max_tokens=3)
    assert [choice["index"] for choice in both["choices"]] == [0, 1]
    assert both["usage"]["prompt_tokens"] == 80
    texts = engine.complete(["one two", "three"], max_tokens=3)
    assert len(texts["choices"]) == 2


def test_tokenize_gives_what_a_request_with_the_text_has(engine: CpuEngine) -> None:
    text = "The quick brown fox \u2013 <|turn|> 🦊"
    said = engine.http.post("/tokenize", json={"prompt": text}).json()
    assert said["count"] == len(said["tokens"]) == engine.complete(text)["usage"]["prompt_tokens"]
    assert engine.complete(text)["choices"][0]["prompt_token_ids"] == said["tokens"]
    assert said["max_model_len"] == 2000
    back = engine.http.post("/detokenize", json={"tokens": said["tokens"][1:], "skip_special_tokens": False}).json()
    assert text in (back.get("prompt"), back.get("text"))


def test_models_are_the_base_and_its_adapters(engine: CpuEngine) -> None:
    base, adapter = engine.http.get("/v1/models").json()["data"]
    assert (base["id"], base["max_model_len"], base["parent"]) == ("tiny", 2000, None)
    assert (adapter["id"], adapter["root"], adapter["parent"]) == ("sql", "/adapters/sql", "tiny")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", b"x"),
        ("/v1/completions", b"{}"),
        ("/v1/completions", b'{"prompt": []}'),
        ("/v1/completions", b'{"prompt": [-1]}'),
        ("/v1/completions", b'{"prompt": [4294967296]}'),
        ("/v1/completions", b'{"prompt": [1.5]}'),
        ("/v1/completions", b'{"prompt": "\\ud800"}'),
        ("/v1/completions", b'{"prompt": "x", "max_tokens": 0}'),
        ("/v1/completions", b'{"prompt": "x", "max_tokens": 2000}'),
        ("/v1/completions", b'{"prompt": "x", "n": 2}'),
        ("/v1/completions", b'{"prompt": "x", "echo": true}'),
        ("/v1/completions", b'{"prompt": "x", "logprobs": 1}'),
        ("/v1/completions", b'{"prompt": ["x", "y"], "stream": true}'),
        ("/v1/chat/completions", b'{"messages": []}'),
        ("/v1/chat/completions", b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}'),
        ("/tokenize", b"{}"),
        ("/detokenize", b'{"tokens": ["a"]}'),
    ],
)
def test_what_cannot_be_served_is_a_400_in_the_engines_form(
    face: Face, engine: CpuEngine, path: str, body: bytes
) -> None:
    answer = engine.http.post(path, content=body)
    error = answer.json()["error"] if face == "vllm" else answer.json()
    assert (answer.status_code, error["code"], error["type"]) == (400, 400, "BadRequestError")
    assert error["message"]
    assert engine.busy() == 0


def test_a_rank_that_is_not_there_is_a_400(engine: CpuEngine) -> None:
    asked = {"prompt": PROMPT}
    assert engine.http.post("/v1/completions", json=asked, headers={"X-data-parallel-rank": "1"}).status_code == 400
    assert engine.http.post("/v1/completions", json=asked, headers={"X-data-parallel-rank": "-1"}).status_code == 400
    assert engine.http.post("/v1/completions", json=asked, headers={"X-data-parallel-rank": "0"}).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_request(face: Face, stream: bool) -> None:
    with cpu_engine(face, decode_us=20_000.0) as engine:
        body = {"prompt": PROMPT, "max_tokens": 1000, "ignore_eos": True, "stream": stream}
        with pytest.raises(httpx.ReadTimeout):
            _go_away(engine, body)
        wait_until(lambda: engine.busy() == 0, 2.0)
        rank = engine.engine.ranks[0]
        assert rank.cache.stats().used == 0
        assert rank.scheduler.counts.finished == {"abort": 1}


def _go_away(engine: CpuEngine, body: dict[str, Any]) -> None:
    """Stop reading at the first byte, or after a while without one."""
    with engine.http.stream("POST", "/v1/completions", json=body, timeout=0.3) as answer:
        next(answer.iter_raw())
        assert engine.busy() == 1
    raise httpx.ReadTimeout("gone")


def test_a_full_queue_refuses_and_serves_those_that_wait(face: Face) -> None:
    with cpu_engine(face, decode_us=10_000.0, max_running=1, max_queued=1) as engine:
        answers: list[int] = []

        def ask() -> None:
            body = {"prompt": PROMPT, "max_tokens": 40, "ignore_eos": True}
            answers.append(httpx.post(f"{engine.url}/v1/completions", json=body, trust_env=False).status_code)

        threads = []
        for busy in (1, 2):
            threads.append(threading.Thread(target=ask))
            threads[-1].start()
            wait_until(lambda n=busy: engine.busy() == n, 2.0)  # type: ignore[misc]
        refused = engine.http.post("/v1/completions", json={"prompt": PROMPT})
        assert (refused.status_code, "queue is full" in refused.text) == (503, True)
        for thread in threads:
            thread.join()
        assert answers == [200, 200]


def test_requests_share_steps_and_cached_tokens_cost_no_time(face: Face) -> None:
    with cpu_engine(face, prefill_us=1000.0, decode_us=20_000.0) as engine:
        cold, warm = _seconds(engine, PROMPT * 4), _seconds(engine, PROMPT * 4)
        assert cold > 0.24
        assert warm < cold / 2
        start, threads = time.monotonic(), []
        for number in range(4):
            threads.append(threading.Thread(target=_seconds, args=(engine, [number], 30)))
            threads[-1].start()
        for thread in threads:
            thread.join()
        assert 0.58 < time.monotonic() - start < 1.8, "30 steps for all four; 120 would take 2.4 s"


def _seconds(engine: CpuEngine, prompt: list[int], max_tokens: int = 1) -> float:
    start = time.monotonic()
    body = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True}
    assert httpx.post(f"{engine.url}/v1/completions", json=body, trust_env=False, timeout=10.0).status_code == 200
    return time.monotonic() - start
