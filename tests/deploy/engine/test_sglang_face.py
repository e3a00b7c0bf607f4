"""What SGLang alone has: its routes over real HTTP, read by the router's own readers."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from deploy.ports import taken_ports
from engine.address import EngineAddress
from engine.discovery import discover
from engine.http_client import HttpClient
from engine.load import EngineLoad, read_load
from index.worker import EngineKind
from tests.support.cpu_engine import CpuEngine, EngineProcess, cpu_engine
from tests.support.service import wait_until

PROMPT = list(range(1000, 1060))
END_TOKEN = 1


@pytest.fixture
def engine() -> Iterator[CpuEngine]:
    with cpu_engine("sglang", block_size=1, dp_size=2, adapters={"sql": "/adapters/sql"}) as running:
        yield running


@pytest.fixture(scope="module")
def used() -> Iterator[CpuEngine]:
    """One for tests that do not mind what others have left in it."""
    with cpu_engine("sglang", block_size=1) as running:
        yield running


def generate(engine: CpuEngine, **fields: Any) -> Any:
    params = {"max_new_tokens": 4, "ignore_eos": True, **fields.pop("params", {})}
    body = {"input_ids": PROMPT, "routed_dp_rank": 0, "sampling_params": params, **fields}
    answer = engine.http.post("/generate", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def cached(engine: CpuEngine, **fields: Any) -> int:
    found: int = generate(engine, **fields)["meta_info"]["cached_tokens"]
    return found


async def test_the_router_learns_all_it_asks_for(engine: CpuEngine) -> None:
    settings = engine.engine.settings
    assert settings.events_port is not None
    assert settings.replay_port is not None
    async with HttpClient() as client:
        facts = await discover(client, EngineAddress(EngineKind.SGLANG, engine.url), 5.0)
        assert facts.events == {rank: f"tcp://127.0.0.1:{settings.events_port + rank}" for rank in (0, 1)}
        assert facts.replay == {rank: f"tcp://127.0.0.1:{settings.replay_port + rank}" for rank in (0, 1)}
        assert (facts.block_size, facts.dp_size, facts.dynamo_format) == (1, 2, False)
        assert (facts.models, facts.adapters) == (("tiny",), {"sql": "/adapters/sql"})
        assert facts.fingerprint is not None
        load = await read_load(client, EngineAddress(EngineKind.SGLANG, engine.url), 5.0)
        assert load == {0: EngineLoad(0, 0, 0.0, None), 1: EngineLoad(0, 0, 0.0, None)}


def test_generate_says_what_it_reused_and_why_it_ended(engine: CpuEngine) -> None:
    first, second = generate(engine), generate(engine)
    assert (first["meta_info"]["cached_tokens"], second["meta_info"]["cached_tokens"]) == (0, 59)
    assert second["meta_info"]["cached_tokens_details"] == {"device": 59, "host": 0}
    assert first["meta_info"]["finish_reason"] == {"type": "length", "length": 4}
    assert (first["meta_info"]["prompt_tokens"], first["meta_info"]["completion_tokens"]) == (60, 4)
    assert first["output_ids"] == second["output_ids"]
    assert first["text"] == engine.engine.tokenizer.decode(first["output_ids"])
    stop = generate(engine, params={"stop_token_ids": [first["output_ids"][2]]})
    assert stop["meta_info"]["finish_reason"] == {"type": "stop", "matched": first["output_ids"][2]}


def test_generate_streams_the_whole_text_each_time(engine: CpuEngine) -> None:
    whole = generate(engine)
    body = {"input_ids": PROMPT, "stream": True, "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}
    with engine.http.stream("POST", "/generate", json=body) as answer:
        *events, done = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    parts = [json.loads(event) for event in events]
    assert done == "[DONE]"
    assert [len(part["output_ids"]) for part in parts] == [1, 2, 3, 4]
    assert all(whole["text"].startswith(part["text"]) for part in parts)
    assert [part["meta_info"]["finish_reason"] is None for part in parts] == [True, True, True, False]


def test_generate_takes_lists_with_a_namespace_for_each(engine: CpuEngine) -> None:
    both = generate(engine, input_ids=[PROMPT, PROMPT], extra_key=["a", None])
    assert [one["meta_info"]["prompt_tokens"] for one in both] == [60, 60]
    again = generate(engine, input_ids=[PROMPT, PROMPT, PROMPT], extra_key=["a", None, "b"])
    assert [one["meta_info"]["cached_tokens"] for one in again] == [59, 59, 0]


def test_salts_keys_and_adapters_share_nothing(engine: CpuEngine) -> None:
    spaces: list[dict[str, Any]] = [{}, {"cache_salt": "a"}, {"extra_key": "a"}, {"lora_path": "sql"}]
    for space in [*spaces, {"extra_key": "a", "lora_path": "sql"}]:
        assert [cached(engine, **space), cached(engine, **space)] == [0, 59], space
    answer = engine.complete(PROMPT, model="tiny:sql", data_parallel_rank=0)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 59


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"text": "x", "input_ids": [1]},
        {"input_ids": []},
        {"input_ids": [1], "lora_path": "other"},
        {"input_ids": [[1], [2]], "extra_key": ["a"]},
        {"input_ids": [1], "routed_dp_rank": 2},
        {"input_ids": [[1], [2]], "stream": True},
        {"input_ids": [1], "sampling_params": {"n": 2}},
    ],
)
def test_generate_has_errors_of_its_own_form(used: CpuEngine, body: dict[str, Any]) -> None:
    answer = used.http.post("/generate", json=body)
    assert answer.status_code == 400
    assert list(answer.json()) == ["error"]
    assert answer.json()["error"]["message"]


def test_the_header_steers_before_the_body_and_else_ranks_take_turns(engine: CpuEngine) -> None:
    engine.complete(PROMPT, headers={"X-Data-Parallel-Rank": "1"}, routed_dp_rank=0)
    assert [rank.scheduler.counts.prompt for rank in engine.engine.ranks] == [0, 60]
    engine.complete(PROMPT)
    engine.complete(PROMPT)
    assert [rank.scheduler.counts.prompt for rank in engine.engine.ranks] == [60, 120]


def test_a_flush_is_announced_at_once_and_refused_while_a_request_runs() -> None:
    with cpu_engine("sglang", block_size=1, decode_us=5000.0) as engine:
        generate(engine)
        assert engine.http.post("/flush_cache").status_code == 200
        wait_until(lambda: _last_events(engine) == ["AllBlocksCleared"], 2.0)
        assert cached(engine) == 0
        body = {"prompt": PROMPT, "max_tokens": 100, "ignore_eos": True, "stream": True}
        with engine.http.stream("POST", "/v1/completions", json=body):
            wait_until(lambda: engine.busy() == 1, 2.0)
            assert httpx.post(f"{engine.url}/flush_cache", trust_env=False).status_code == 400
            assert httpx.post(f"{engine.url}/flush_cache?timeout=5", trust_env=False, timeout=6).status_code == 200


def test_the_first_event_is_a_clear_and_decodes_are_told_every_few_steps() -> None:
    with cpu_engine("sglang", block_size=1, decode_log_interval=10) as engine:
        assert _last_events(engine) == ["AllBlocksCleared"]
        generate(engine, params={"max_new_tokens": 35})
        assert _last_events(engine) == ["BlockStored"]
        publisher = engine.engine.ranks[0].publisher
        assert publisher is not None
        stored = [msgspec.msgpack.decode(payload)[1] for _, payload in publisher.buffer][1:]
        assert [len(event["token_ids"]) for events in stored for event in events] == [60, 34]


def test_metrics_have_sglangs_names(engine: CpuEngine) -> None:
    generate(engine)
    generate(engine)
    page = engine.http.get("/metrics").text
    labels = 'dp_rank="0",engine_type="unified",model_name="tiny",moe_ep_rank="0",pp_rank="0",tp_rank="0"'
    assert f'sglang:cached_tokens_total{{cache_source="device",{labels}}} 59.0' in page
    assert f"sglang:num_running_reqs{{{labels}}} 0.0" in page
    assert f"sglang:cache_hit_rate{{{labels}}} {59 / 120}" in page


def _last_events(engine: CpuEngine) -> list[str]:
    publisher = engine.engine.ranks[0].publisher
    assert publisher is not None
    return [event["type"] for event in msgspec.msgpack.decode(publisher.buffer[-1][1])[1]] if publisher.buffer else []


def test_when_the_scheduler_dies_the_server_answers_only_what_needs_none() -> None:
    """As SGLang 0.5.22 does until its API server notices."""
    process = EngineProcess("--face", "sglang")
    try:
        process.start()
        with httpx.Client(base_url=process.url, timeout=0.5, trust_env=False) as http:
            process.tell(signal.SIGUSR1)
            wait_until(lambda: not taken_ports(process.events, 1) + taken_ports(process.replay, 1), 10.0)
            for path in ("/ready", "/v1/models", "/v1/loads", "/model_info", "/metrics"):
                assert http.get(path).status_code == 200
            for path in ("/health", "/server_info"):
                with pytest.raises(httpx.ReadTimeout):
                    http.get(path)
            with pytest.raises(httpx.ReadTimeout):
                http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
        process.stop(signal.SIGTERM)
    finally:
        process.close()
