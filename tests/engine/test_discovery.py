"""Discovery: facts from real HTTP answers of both engines, and from broken ones."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from engine.address import EngineAddress
from engine.discovery import EngineFacts, EngineUnreachable, discover, fingerprint
from engine.http_client import HttpClient
from index.worker import EngineKind
from tests.support.fake_engine import HTML, FakeEngine, RankLoad, Reply

GOLDEN = Path(__file__).parents[1] / "golden" / "sglang" / "server_info_kv_events.json"
SPOILT = {
    "html": HTML,
    "html with 200": Reply("<html>", 200, "text/html"),
    "server error": Reply("{}", 500),
    "redirect": Reply("", 307, headers={"location": "/elsewhere"}),
    "not json": Reply('{"version": NaN}'),
    "no utf-8": Reply(b"\xff\xfe"),
    "array": Reply("[1, 2]"),
    "null": Reply("null"),
    "deep": Reply("[" * 100_000),
    "huge": Reply('{"x": "' + "x" * (9 << 20) + '"}'),
}
ODD_OBJECTS = [
    "{}",
    '{"version": 3, "data": {"a": 1}, "kv_events": [], "startup_time": "x", "kv_events_config": 5, "loads": 1}',
    '{"version": {}, "data": [1, null, {"id": 5}, {"id": "x", "root": 7, "parent": 8}], "internal_states": {"a": 1}}',
    '{"0": null, "x": {}, "-1": {}, "1": [], "2": {"endpoint": 5}, "3": {"endpoint": "tcp://", "topic": 7}}',
    '{"kv_events": {"endpoint_host": 5, "endpoint_port_base": "x"}, "kv_events_config": "[[", "page_size": true}',
    '{"kv_events": {"endpoint_host": "*", "endpoint_port_base": 65535, "dp_size": 4000000000, "block_size": -1}}',
]


@pytest.fixture
async def client() -> AsyncIterator[HttpClient]:
    async with HttpClient() as client:
        yield client


@pytest.fixture
def vllm() -> Iterator[FakeEngine]:
    with FakeEngine(EngineKind.VLLM, events="tcp://*:5557", replay="tcp://*:5657") as engine:
        yield engine


@pytest.fixture
def sglang() -> Iterator[FakeEngine]:
    with FakeEngine(EngineKind.SGLANG, events="tcp://*:5557", replay="tcp://*:5657") as engine:
        yield engine


async def learn(client: HttpClient, engine: FakeEngine) -> EngineFacts:
    return await discover(client, EngineAddress(engine.kind, engine.url), 5)


# vLLM


async def test_vllm_tells_everything(client: HttpClient, vllm: FakeEngine) -> None:
    vllm.dp_size, vllm.topic, vllm.prefix_match_unit = 2, "kv", 8
    vllm.adapters, vllm.hash_algorithm = {"sql": "/loras/sql"}, "sha256_cbor"
    assert await learn(client, vllm) == EngineFacts(
        version="0.32.0",
        events={0: "tcp://127.0.0.1:5557", 1: "tcp://127.0.0.1:5558"},
        replay={0: "tcp://127.0.0.1:5657", 1: "tcp://127.0.0.1:5658"},
        topic="kv",
        block_size=16,
        dp_size=2,
        prefix_match_unit=8,
        fingerprint="1750000000.25",
        adapters={"sql": "/loras/sql"},
        models=("m",),
        dynamo_format=None,
        warning=None,
        hash_algorithm="sha256_cbor",
        roots={"m": "/models/m"},
        ranks=(0, 1),
    )


@pytest.mark.parametrize(
    ("shown", "learnt"),
    [("xxhash", "xxhash"), ("sha256_cbor_64bit", "sha256_cbor_64bit"), (None, None), ("", None), ("a b", None)],
)
async def test_vllm_names_its_hash_algorithm_where_it_has_one(
    client: HttpClient, vllm: FakeEngine, shown: str | None, learnt: str | None
) -> None:
    vllm.hash_algorithm = shown
    assert (await learn(client, vllm)).hash_algorithm == learnt


@pytest.mark.parametrize(("status", "loadable"), [(405, True), (404, False), (401, False)])
async def test_vllm_that_takes_adapters_at_run_time_is_known_by_the_path_for_it(
    client: HttpClient, vllm: FakeEngine, status: int, loadable: bool
) -> None:
    vllm.adapters = {"sql": "/loras/sql"}
    vllm.replies["/v1/load_lora_adapter"] = Reply("{}", status)
    found = await learn(client, vllm)
    assert found.adapters_loadable is loadable
    vllm.adapters = {}
    assert not (await learn(client, vllm)).adapters_loadable


async def test_vllm_with_events_off_says_how_to_switch_them_on(client: HttpClient, vllm: FakeEngine) -> None:
    vllm.events = None
    vllm.loads = {0: RankLoad(), 1: RankLoad()}
    facts = await learn(client, vllm)
    assert (facts.events, facts.replay, facts.topic, facts.dp_size) == ({}, {}, None, 2)
    assert facts.warning is not None
    assert "--kv-events-config" in facts.warning


async def test_vllm_source_entries_that_are_off_or_malformed_are_left_out(client: HttpClient, vllm: FakeEngine) -> None:
    sources = {
        "0": {"endpoint": "tcp://*:5557", "replay_endpoint": None, "topic": "", "enable_kv_cache_events": True},
        "1": {"endpoint": "tcp://*:5558", "enable_kv_cache_events": False},
        "2": {"endpoint": "tcp://*:5559", "publisher": "null"},
        "3": {"endpoint": "nonsense"},
        "4": "nonsense",
    }
    vllm.spoil(Reply(json.dumps(sources)), "/kv_event_sources")
    facts = await learn(client, vllm)
    assert facts.events == {0: "tcp://127.0.0.1:5557"}
    assert facts.warning is not None
    assert "'nonsense' is not an endpoint" in facts.warning
    assert "no replay endpoint" in facts.warning


async def test_an_older_vllm_without_event_sources_asks_for_settings(client: HttpClient, vllm: FakeEngine) -> None:
    vllm.spoil(Reply('{"detail": "Not Found"}', 404), "/kv_event_sources")
    facts = await learn(client, vllm)
    assert (facts.version, facts.events) == ("0.32.0", {})
    assert facts.warning is not None
    assert "set `events`" in facts.warning


async def test_replay_ports_that_run_into_event_ports_are_warned_about(
    client: HttpClient, vllm: FakeEngine, sglang: FakeEngine
) -> None:
    for engine in (vllm, sglang):
        engine.dp_size, engine.replay = 2, "tcp://*:5558"
        warning = (await learn(client, engine)).warning
        assert warning is not None
        assert "both an event and a replay endpoint" in warning


async def test_several_start_times_make_one_fingerprint(client: HttpClient, vllm: FakeEngine) -> None:
    page = "process_start_time_seconds 200.5\nprocess_start_time_seconds 100\nprocess_start_time_seconds 200.5\n"
    vllm.spoil(Reply(page, content_type="text/plain"), "/metrics")
    assert await fingerprint(client, EngineAddress(EngineKind.VLLM, vllm.url), 5) == "100.0,200.5"
    vllm.spoil(Reply("nothing here\n", content_type="text/plain"), "/metrics")
    assert await fingerprint(client, EngineAddress(EngineKind.VLLM, vllm.url), 5) is None


# SGLang


async def test_sglang_tells_everything(client: HttpClient, sglang: FakeEngine) -> None:
    sglang.dp_size, sglang.topic, sglang.block_size, sglang.dynamo = 2, "kv", 64, True
    sglang.adapters = {"sql": "/loras/sql"}
    assert await learn(client, sglang) == EngineFacts(
        version="0.5.22",
        events={0: "tcp://127.0.0.1:5557", 1: "tcp://127.0.0.1:5558"},
        replay={0: "tcp://127.0.0.1:5657", 1: "tcp://127.0.0.1:5658"},
        topic="kv",
        block_size=64,
        dp_size=2,
        prefix_match_unit=None,
        fingerprint="scheduler_e2e=175.000000025,tokenizer_e2e=2.25",
        adapters={"sql": "/loras/sql"},
        models=("m",),
        dynamo_format=True,
        warning=None,
        roots={"m": "/models/m"},
    )


async def test_sglang_publisher_descriptions_are_understood(client: HttpClient, sglang: FakeEngine) -> None:
    for case in json.loads(GOLDEN.read_text()):
        config, block = case["kv_events_config"], case["kv_events"]
        info = {"version": "0.5.22", **case["server_args"], "kv_events": block}
        info["kv_events_config"] = None if config is None else json.dumps(config)
        sglang.spoil(Reply(json.dumps(info)), "/server_info")
        facts = await learn(client, sglang)
        if block is None:
            assert facts.events == facts.replay == {}
            assert "KV events are off" in (facts.warning or "")
            continue
        host = "127.0.0.1" if block["endpoint_host"] in ("*", "0.0.0.0") else block["endpoint_host"]
        assert facts.events == _ports(host, block["endpoint_port_base"], block["dp_size"])
        assert facts.replay == _ports(host, block.get("replay_endpoint_port_base"), block["dp_size"])
        assert (facts.topic, facts.block_size, facts.dp_size) == (block["topic"], block["block_size"], block["dp_size"])
        assert facts.dynamo_format is (config.get("format") == "dynamo")


def _ports(host: str, base: int | None, ranks: int) -> dict[int, str]:
    return {} if base is None else {rank: f"tcp://{host}:{base + rank}" for rank in range(ranks)}


async def test_an_older_sglang_shows_its_publisher_in_the_config_text(client: HttpClient, sglang: FakeEngine) -> None:
    config = {"publisher": "zmq", "replay_endpoint": "tcp://*:5700", "topic": "t"}
    info = {"version": "0.5.7", "page_size": 1, "kv_events_config": json.dumps(config)}
    sglang.spoil(Reply("{}", 404), "/server_info")
    sglang.spoil(Reply(json.dumps(info)), "/get_server_info")
    facts = await learn(client, sglang)
    assert (facts.events, facts.replay) == ({0: "tcp://127.0.0.1:5557"}, {0: "tcp://127.0.0.1:5700"})
    assert (facts.topic, facts.block_size, facts.dynamo_format, facts.fingerprint) == ("t", 1, False, None)


async def test_sglang_adapters_in_the_default_format_are_warned_about(client: HttpClient, sglang: FakeEngine) -> None:
    sglang.adapters = {"sql": "/loras/sql"}
    warning = (await learn(client, sglang)).warning
    assert warning is not None
    assert 'set "format": "dynamo" in --kv-events-config' in warning


async def test_an_sglang_whose_hashes_are_not_chained_is_warned_about(client: HttpClient, sglang: FakeEngine) -> None:
    sglang.version = "0.5.5"
    assert "0.5.6 or later" in ((await learn(client, sglang)).warning or "")


async def test_ranks_beyond_the_last_port_are_left_out_with_a_warning(client: HttpClient, sglang: FakeEngine) -> None:
    block = {"endpoint_host": "*", "endpoint_port_base": 65534, "dp_size": 4}
    info = {"version": "0.5.22", "kv_events": block, "kv_events_config": {"publisher": "zmq", "format": "dynamo"}}
    sglang.spoil(Reply(json.dumps(info)), "/server_info")
    facts = await learn(client, sglang)
    assert (list(facts.events), facts.dp_size, facts.dynamo_format) == ([0, 1], 4, True)
    assert "rank 2 would be at port 65536" in (facts.warning or "")
    assert "no replay endpoint" in (facts.warning or "")


async def test_without_server_info_sglang_facts_are_unknown_without_a_warning(
    client: HttpClient, sglang: FakeEngine
) -> None:
    sglang.spoil(HTML, "/server_info")
    facts = await learn(client, sglang)
    assert (facts.models, facts.events, facts.dynamo_format, facts.warning) == (("m",), {}, None, None)


async def test_startup_times_are_also_found_among_the_internal_states(client: HttpClient, sglang: FakeEngine) -> None:
    info = {"internal_states": [{}, {"startup_time": {"scheduler_e2e": 7}}]}
    sglang.spoil(Reply(json.dumps(info)), "/server_info")
    assert await fingerprint(client, EngineAddress(EngineKind.SGLANG, sglang.url), 5) == "scheduler_e2e=7.0"


# Both


@pytest.mark.parametrize("kind", EngineKind)
async def test_another_process_has_another_fingerprint(client: HttpClient, kind: EngineKind) -> None:
    with FakeEngine(kind) as engine:
        first = await fingerprint(client, EngineAddress(kind, engine.url), 5)
        assert first == await fingerprint(client, EngineAddress(kind, engine.url + "/"), 5)
        engine.restart()
        assert first != await fingerprint(client, EngineAddress(kind, engine.url), 5)
        engine.spoil(HTML)
        assert await fingerprint(client, EngineAddress(kind, engine.url), 5) is None


@pytest.mark.parametrize("kind", EngineKind)
async def test_an_engine_that_answers_nothing_of_use_is_unreachable(client: HttpClient, kind: EngineKind) -> None:
    with FakeEngine(kind) as engine:
        for reply in SPOILT.values():
            engine.spoil(reply)
            engine.spoil(Reply("", 404), "/metrics")
            with pytest.raises(EngineUnreachable, match=engine.url):
                await discover(client, EngineAddress(kind, engine.url), 5)
        assert engine.calls["/elsewhere"] == 0


@pytest.mark.parametrize("kind", EngineKind)
async def test_answers_of_unexpected_shape_leave_facts_unknown(client: HttpClient, kind: EngineKind) -> None:
    with FakeEngine(kind) as engine:
        for body in ODD_OBJECTS:
            engine.spoil(Reply(body))
            facts = await discover(client, EngineAddress(kind, engine.url), 5)
            assert (facts.version, facts.fingerprint, facts.block_size) == (None, None, None)
            assert len(facts.events) <= 1


@pytest.mark.parametrize("kind", EngineKind)
async def test_nobody_listening_and_slow_answers_are_unreachable_within_the_limit(
    client: HttpClient, kind: EngineKind
) -> None:
    with FakeEngine(kind) as engine:
        engine.spoil(Reply("{}", delay_s=1.0))
        with pytest.raises(EngineUnreachable, match=r"within 0\.1 s"):
            await discover(client, EngineAddress(kind, engine.url), 0.1)
        url = engine.url
    with pytest.raises(EngineUnreachable):
        await discover(client, EngineAddress(kind, url), 5)


async def test_one_slow_part_costs_only_that_part(client: HttpClient, vllm: FakeEngine) -> None:
    vllm.spoil(Reply("{}", delay_s=2.0), "/v1/models")
    facts = await discover(client, EngineAddress(vllm.kind, vllm.url), 1.0)
    assert (facts.version, facts.models, len(facts.events)) == ("0.32.0", (), 1)


async def test_a_url_without_a_host_is_unreachable(client: HttpClient) -> None:
    for url in ("vllm-0", "http://", "http://[::1", "ftp://a"):
        with pytest.raises(EngineUnreachable):
            await discover(client, EngineAddress(EngineKind.VLLM, url), 1)


# Keys


@pytest.mark.parametrize("kind", EngineKind)
async def test_an_engine_that_wants_a_key_says_so_in_the_warning_and_answers_to_the_key(
    client: HttpClient, kind: EngineKind
) -> None:
    with FakeEngine(kind, api_key="k-1", adapters={"sql": "/loras/sql"}, events="tcp://*:5557") as engine:
        facts = await learn(client, engine)
        assert facts.unauthorized
        assert (facts.models, facts.adapters) == ((), {})
        assert "answers 401 Unauthorized to GET" in (facts.warning or "")
        assert "/v1/models" in (facts.warning or "")
        assert "set `api_key` or `api_key_file`" in (facts.warning or "")
        facts = await discover(client, EngineAddress(kind, engine.url, "other"), 5)
        assert facts.unauthorized
        assert "its api_key is refused" in (facts.warning or "")
        assert "other" not in (facts.warning or "")
        address = EngineAddress(kind, engine.url, "k-1")
        facts = await discover(client, address, 5)
        assert (facts.unauthorized, facts.models, facts.adapters) == (False, ("m",), {"sql": "/loras/sql"})
        assert await fingerprint(client, address, 5) == facts.fingerprint is not None


async def test_403_is_a_refused_key_too_and_a_guarded_source_list_is_not_taken_for_a_missing_one(
    client: HttpClient, vllm: FakeEngine
) -> None:
    vllm.spoil(Reply("{}", 403), "/kv_event_sources")
    facts = await learn(client, vllm)
    assert facts.unauthorized
    assert "403 Forbidden to GET /kv_event_sources" in (facts.warning or "")
    assert "does not tell where" not in (facts.warning or "")


def test_a_key_is_not_in_the_address_as_text() -> None:
    assert "k-1" not in f"{EngineAddress(EngineKind.VLLM, 'http://a', 'k-1')!r}"


# Ranks


async def test_ranks_are_counted_from_0_and_keep_the_engines_own_numbers(client: HttpClient, vllm: FakeEngine) -> None:
    for own in ((2, 3), (3,), (0, 5), (7, 999_999_999_999), (10, 9)):
        vllm.own_ranks, vllm.events, vllm.replay = own, None, None
        sources = {
            str(rank): {"endpoint": f"tcp://*:{6000 + rank % 1000}", "replay_endpoint": f"tcp://*:{8000 + rank % 1000}"}
            for rank in own
        }
        vllm.spoil(Reply(json.dumps(sources)), "/kv_event_sources")
        facts = await learn(client, vllm)
        assert (facts.ranks, facts.dp_size, facts.warning) == (tuple(sorted(own)), len(own), None)
        places = [6000 + rank % 1000 for rank in sorted(own)]
        assert facts.events == {rank: f"tcp://127.0.0.1:{port}" for rank, port in enumerate(places)}
        assert list(facts.replay) == list(facts.events)


async def test_a_rank_without_events_keeps_its_place_among_the_others(client: HttpClient, vllm: FakeEngine) -> None:
    sources = {
        "2": {"endpoint": "tcp://*:0"},
        "3": {"endpoint": "tcp://*:6003", "enable_kv_cache_events": False},
        "4": {"endpoint": "tcp://*:6004"},
        "-1": {"endpoint": "tcp://*:6005"},
    }
    vllm.spoil(Reply(json.dumps(sources)), "/kv_event_sources")
    facts = await learn(client, vllm)
    assert (facts.ranks, facts.events) == ((2, 3, 4), {2: "tcp://127.0.0.1:6004"})
    for words in ("rank 2: 'tcp://*:0': the port is '0', any free one, which nobody tells", "'-1'"):
        assert words in (facts.warning or "")


async def test_two_ranks_at_one_endpoint_are_followed_once_with_a_warning(client: HttpClient, vllm: FakeEngine) -> None:
    one = {"endpoint": "tcp://*:6000", "replay_endpoint": "tcp://*:6100"}
    vllm.spoil(Reply(json.dumps({"4": one, "5": one})), "/kv_event_sources")
    facts = await learn(client, vllm)
    assert (facts.events, facts.dp_size) == ({0: "tcp://127.0.0.1:6000"}, 2)
    assert "ranks 4 and 5 publish their events at one endpoint, tcp://127.0.0.1:6000" in (facts.warning or "")


# Pages of several models


async def test_of_a_shared_metrics_page_only_own_rows_count(client: HttpClient, vllm: FakeEngine) -> None:
    def config(model: str, rank: int, block: int, algorithm: str) -> str:
        labels = f'block_size="{block}",prefix_caching_hash_algo="{algorithm}",engine="{rank}",model_name="{model}"'
        running = f'vllm:num_requests_running{{engine="{rank}",model_name="{model}"}} 1\n'
        return f"vllm:cache_config_info{{{labels}}} 1\n{running}"

    page = config("other", 0, 64, "xxhash") + config("other", 1, 64, "xxhash") + config("m", 0, 16, "sha256_cbor")
    vllm.spoil(Reply("{}", 404), "/kv_event_sources")
    for names in ("m", "/models/m"):
        vllm.spoil(Reply(page.replace('"m"', f'"{names}"'), content_type="text/plain"), "/metrics")
        facts = await learn(client, vllm)
        assert (facts.block_size, facts.hash_algorithm, facts.dp_size) == (16, "sha256_cbor", 1)
    vllm.spoil(Reply("", 500), "/v1/models")
    assert (await discover(client, EngineAddress(vllm.kind, vllm.url), 5, "/models/m")).block_size == 16
    unnamed = page.replace(',model_name="m"', "").replace(',model_name="other"', "").replace('"/models/m"', '"m"')
    vllm.spoil(Reply(unnamed + config("m", 0, 16, "sha256_cbor"), content_type="text/plain"), "/metrics")
    assert (await learn(client, vllm)).block_size is None  # rows that differ and name nobody
