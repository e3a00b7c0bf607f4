"""What vLLM alone has: its routes over real HTTP, read by the router's own readers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import httpx
import msgspec
import pytest

from deploy.engine.settings import EngineSettings, read_settings
from deploy.ports import taken_ports
from engine.address import EngineAddress
from engine.discovery import discover
from engine.http_client import HttpClient
from engine.load import EngineLoad, read_load
from index.worker import EngineKind
from tests.support.cpu_engine import CpuEngine, EngineProcess, cpu_engine
from tests.support.service import wait_until

PROMPT = list(range(1000, 1060))


@pytest.fixture
def engine() -> Iterator[CpuEngine]:
    with cpu_engine("vllm", dp_size=2, topic="kv", adapters={"sql": "/adapters/sql"}) as running:
        yield running


@pytest.fixture(scope="module")
def used() -> Iterator[CpuEngine]:
    """One for tests that do not mind what others have left in it."""
    with cpu_engine("vllm") as running:
        yield running


def cached(engine: CpuEngine, **fields: object) -> int:
    answer = engine.complete(PROMPT, headers={"X-data-parallel-rank": "0"}, **fields)
    found: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


async def test_the_router_learns_all_it_asks_for(engine: CpuEngine) -> None:
    settings = engine.engine.settings
    assert settings.events_port is not None
    assert settings.replay_port is not None
    async with HttpClient() as client:
        facts = await discover(client, EngineAddress(EngineKind.VLLM, engine.url), 5.0)
        assert facts.events == {rank: f"tcp://127.0.0.1:{settings.events_port + rank}" for rank in (0, 1)}
        assert facts.replay == {rank: f"tcp://127.0.0.1:{settings.replay_port + rank}" for rank in (0, 1)}
        assert (facts.topic, facts.block_size, facts.dp_size) == ("kv", 16, 2)
        assert (facts.models, facts.adapters) == (("tiny",), {"sql": "/adapters/sql"})
        assert facts.fingerprint is not None
        assert facts.warning is None
        load = await read_load(client, EngineAddress(EngineKind.VLLM, engine.url), 5.0)
        assert load == {0: EngineLoad(0, 0, 0.0, False), 1: EngineLoad(0, 0, 0.0, False)}


def test_salts_and_adapters_share_nothing(engine: CpuEngine) -> None:
    assert [cached(engine), cached(engine)] == [0, 48]
    assert [cached(engine, cache_salt="a"), cached(engine, cache_salt="a")] == [0, 48]
    assert [cached(engine, model="sql"), cached(engine, model="sql")] == [0, 48]
    assert cached(engine, model="sql", cache_salt="a") == 0


@pytest.mark.parametrize("salt", ["", "a@b", "a/b", "a\\b", "a\0", "x" * 129])
def test_a_salt_that_vllm_refuses_is_refused(used: CpuEngine, salt: str) -> None:
    assert used.http.post("/v1/completions", json={"prompt": PROMPT, "cache_salt": salt}).status_code == 400


def test_a_model_that_is_not_served_is_a_404(used: CpuEngine) -> None:
    answer = used.http.post("/v1/completions", json={"prompt": PROMPT, "model": "other"})
    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "NotFoundError"


def test_metrics_count_queries_hits_and_tokens(engine: CpuEngine) -> None:
    cached(engine)
    cached(engine)
    lines = engine.http.get("/metrics").text.splitlines()
    assert 'vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 120.0' in lines
    assert 'vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 48.0' in lines
    assert 'vllm:prefix_cache_hits_total{engine="1",model_name="tiny"} 0.0' in lines
    assert 'vllm:generation_tokens_total{engine="0",model_name="tiny"} 8.0' in lines
    assert any(line.startswith("process_start_time_seconds ") for line in lines)


def test_a_reset_empties_the_cache_and_is_announced_with_the_next_step(engine: CpuEngine) -> None:
    cached(engine)
    before = engine.last_seq()
    assert engine.http.post("/reset_prefix_cache").json() == {"success": True}
    assert engine.last_seq() == before
    assert cached(engine) == 0
    publisher = engine.engine.ranks[0].publisher
    assert publisher is not None
    assert before is not None
    events = msgspec.msgpack.decode(publisher.buffer[before + 1][1])[1]
    assert [event["type"] for event in events] == ["AllBlocksCleared", "BlockStored"]


def test_a_reset_fails_while_a_request_runs() -> None:
    with cpu_engine("vllm", decode_us=10_000.0) as engine:
        body = {"prompt": PROMPT, "max_tokens": 500, "ignore_eos": True, "stream": True}
        with engine.http.stream("POST", "/v1/completions", json=body):
            wait_until(lambda: engine.busy() == 1, 2.0)
            answer = httpx.post(f"{engine.url}/reset_prefix_cache", trust_env=False)
            assert answer.json() == {"success": False}


def test_requests_without_a_rank_go_to_the_rank_with_the_least_to_do(engine: CpuEngine) -> None:
    chosen = [engine.engine.rank(None).number]
    engine.engine.ranks[0].scheduler.running.append(None)  # type: ignore[arg-type]
    chosen.append(engine.engine.rank(None).number)
    engine.engine.ranks[0].scheduler.running.clear()
    assert chosen == [0, 1]


def test_without_event_ports_it_says_that_there_are_no_events() -> None:
    process = EngineProcess("--face", "vllm")
    process.use_events = False
    try:
        process.start()
        assert httpx.get(f"{process.url}/kv_event_sources", trust_env=False).json() == {}
        assert process.stop(signal.SIGTERM) in (0, -signal.SIGTERM)
    finally:
        process.close()


def test_the_command_line_becomes_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "PYTHONHASHSEED", "042")
    told = read_settings(["--face", "vllm", "--adapter", "sql=/x=y", "--cache-tokens", "1000", "--prefill-us", "2.5"])
    assert told == EngineSettings(
        "vllm", adapters={"sql": "/x=y"}, cache_tokens=1000, prefill_us=2.5, hash_seed="042", step_tokens=2048
    )
    assert told.context == 984
    assert read_settings(["--face", "sglang"]).block_size == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--face", "other"], "'vllm', 'sglang'"),
        ([], "--face"),
        (["--face", "vllm", "--events-port", "1"], "--replay-port go together"),
        (["--face", "vllm", "--events-port", "5557", "--replay-port", "5558", "--dp-size", "2"], "--dp-size 2 apart"),
        (["--face", "vllm", "--cache-tokens", "16"], "--cache-tokens is 16"),
        (["--face", "vllm", "--adapter", "sql"], "NAME=PATH"),
        (["--face", "vllm", "--block-size", "0"], "--block-size is 0; allowed: 1 to 4096"),
        (["--face", "vllm", "--dp-size", "-1"], "--dp-size is -1; allowed: 1 to 64"),
        (["--face", "vllm", "--port", "70000"], "--port is 70000; allowed: 0 to 65535"),
        (["--face", "vllm", "--max-running", "0"], "--max-running is 0; allowed: 1 to 65536"),
        (["--face", "vllm", "--prefill-us", "nan"], "--prefill-us is nan"),
        (["--face", "vllm", "--decode-us", "-1"], "--decode-us is -1"),
        (["--face", "vllm", "--cache-tokens", "many"], "invalid int value: 'many'"),
        (["--face", "vllm", "--hash-algorithm", "md5"], "'sha256', 'sha256_cbor', 'xxhash', 'xxhash_cbor'"),
        (["--face", "sglang", "--policy", "random"], "'lru', 'lfu', 'fifo', 'mru', 'filo', 'slru'"),
    ],
)
def test_settings_that_cannot_work_stop_the_start_and_are_named(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        read_settings(arguments)
    assert stopped.value.code == 2
    assert words in capsys.readouterr().err


def test_an_engine_asleep_holds_nothing_runs_nothing_and_says_so(engine: CpuEngine) -> None:
    cached(engine)
    assert engine.http.post("/sleep").json() == {"status": "sleeping", "level": 1}
    assert engine.http.get("/is_sleeping").json() == {"is_sleeping": True}
    states = [line for line in engine.http.get("/metrics").text.splitlines() if "engine_sleep_state{" in line]
    on = {line.split('sleep_state="')[1].split('"')[0] for line in states if line.endswith(" 1.0")}
    assert on == {"weights_offloaded"}
    with pytest.raises(httpx.ReadTimeout):
        engine.http.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 1}, timeout=0.3)
    assert engine.http.post("/wake_up").status_code == 200
    assert engine.http.get("/is_sleeping").json() == {"is_sleeping": False}
    assert cached(engine) == 0


def test_going_to_sleep_aborts_what_runs() -> None:
    with cpu_engine("vllm", decode_us=5_000.0) as engine:
        body = {"prompt": PROMPT, "max_tokens": 500, "ignore_eos": True, "stream": True}
        with engine.http.stream("POST", "/v1/completions", json=body) as answer:
            wait_until(lambda: engine.busy() == 1, 2.0)
            assert httpx.post(f"{engine.url}/sleep?level=2", trust_env=False).status_code == 200
            assert '"finish_reason":"abort"' in answer.read().decode()
        assert engine.busy() == 0
        assert engine.engine.ranks[0].cache.stats().evictable == 0


def test_an_unknown_sleep_level_is_a_400(engine: CpuEngine) -> None:
    answer = engine.http.post("/sleep?level=9")
    assert (answer.status_code, engine.http.get("/is_sleeping").json()) == (400, {"is_sleeping": False})
    assert "0, 1, 2" in answer.text


def test_the_time_to_the_first_token_is_a_histogram(engine: CpuEngine) -> None:
    cached(engine)
    lines = engine.http.get("/metrics").text.splitlines()
    assert 'vllm:time_to_first_token_seconds_count{engine="0",model_name="tiny"} 1.0' in lines
    assert 'vllm:e2e_request_latency_seconds_bucket{engine="0",le="+Inf",model_name="tiny"} 1.0' in lines


def test_when_the_engine_core_dies_the_server_says_so_and_lives_on() -> None:
    """As a vLLM 0.32 whose core is killed, with VLLM_KEEP_ALIVE_ON_ENGINE_DEATH."""
    process = EngineProcess("--face", "vllm", "--decode-us", "50000")
    try:
        process.start()
        with httpx.Client(base_url=process.url, timeout=10.0, trust_env=False) as http:
            body = {"prompt": PROMPT, "max_tokens": 100, "ignore_eos": True}
            with http.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
                pieces = answer.iter_raw()
                next(pieces)
                process.tell(signal.SIGUSR1)
                rest = b"".join(pieces)
            assert b'"code":500' in rest
            assert rest.endswith(b"data: [DONE]\n\n")
            assert http.get("/health").status_code == 503
            assert http.get("/v1/models").status_code == http.get("/metrics").status_code == 200
            failed = http.post("/v1/completions", json=body)
            assert failed.status_code == 500
            assert failed.json()["error"]["type"] == "InternalServerError"
        wait_until(lambda: not taken_ports(process.events, 1) + taken_ports(process.replay, 1), 10.0)
        process.stop(signal.SIGTERM)
    finally:
        process.close()
