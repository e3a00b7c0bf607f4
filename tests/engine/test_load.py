"""Loads of both engines: per rank, and what is not known is None."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from engine.address import EngineAddress
from engine.http_client import HttpClient
from engine.load import EngineLoad, of_ranks, read_load
from index.worker import EngineKind
from tests.support.fake_engine import HTML, FakeEngine, RankLoad, Reply

BUSY = {0: RankLoad(3, 1, 0.5), 1: RankLoad(0, 0, 0.0)}


@pytest.fixture
async def client() -> AsyncIterator[HttpClient]:
    async with HttpClient() as client:
        yield client


async def load(client: HttpClient, engine: FakeEngine) -> dict[int, EngineLoad]:
    return await read_load(client, EngineAddress(engine.kind, engine.url), 5)


async def test_vllm_reports_every_rank_and_its_sleep(client: HttpClient) -> None:
    with FakeEngine(EngineKind.VLLM, loads=BUSY) as engine:
        assert await load(client, engine) == {
            0: EngineLoad(3, 1, 0.5, asleep=False),
            1: EngineLoad(0, 0, 0.0, asleep=False),
        }
        engine.asleep = True
        assert [rank.asleep for rank in (await load(client, engine)).values()] == [True, True]


@pytest.mark.parametrize("path", ["/v1/loads", "/metrics"])
async def test_sglang_reports_every_rank_by_either_way(client: HttpClient, path: str) -> None:
    with FakeEngine(EngineKind.SGLANG, loads=BUSY, dp_size=2) as engine:
        if path == "/metrics":
            engine.spoil(Reply('{"detail": "Not Found"}', 404), "/v1/loads")
        assert await load(client, engine) == {0: EngineLoad(3, 1, 0.5, None), 1: EngineLoad(0, 0, 0.0, None)}
        assert engine.calls["/metrics"] == (path == "/metrics")


async def test_sglang_metrics_of_one_rank_have_no_rank_label(client: HttpClient) -> None:
    with FakeEngine(EngineKind.SGLANG, loads={0: RankLoad(2, 1, 0.25)}) as engine:
        engine.spoil(HTML, "/v1/loads")
        assert await load(client, engine) == {0: EngineLoad(2, 1, 0.25, None)}


async def test_of_several_tensor_ranks_the_largest_counts(client: HttpClient) -> None:
    page = "".join(f'sglang:num_running_reqs{{tp_rank="{rank}"}} {value}\n' for rank, value in enumerate(("NaN", 5, 2)))
    with FakeEngine(EngineKind.SGLANG) as engine:
        engine.spoil(HTML, "/v1/loads")
        engine.spoil(Reply(page, content_type="text/plain"), "/metrics")
        assert await load(client, engine) == {0: EngineLoad(5, None, None, None)}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1, None])
@pytest.mark.parametrize("kind", EngineKind)
async def test_a_value_that_says_nothing_is_none_never_zero(
    client: HttpClient, kind: EngineKind, bad: float | None
) -> None:
    with FakeEngine(kind, loads={0: RankLoad(bad, 2, bad)}) as engine:
        found = await load(client, engine)
        assert found[0][:3] == (None, 2, None)


async def test_the_sleep_state_of_an_older_vllm_is_not_known(client: HttpClient) -> None:
    page = 'vllm:num_requests_running{model_name="m"} 1\nvllm:num_requests_waiting{engine="x"} 1\n'
    with FakeEngine(EngineKind.VLLM) as engine:
        engine.spoil(Reply(page, content_type="text/plain"), "/metrics")
        assert await load(client, engine) == {0: EngineLoad(1, None, None, None)}


@pytest.mark.parametrize("kind", EngineKind)
async def test_nothing_readable_is_no_load(client: HttpClient, kind: EngineKind) -> None:
    with FakeEngine(kind) as engine:
        for reply in (HTML, Reply("", 500), Reply("{}"), Reply('{"loads": [1, {"dp_rank": "x"}]}')):
            engine.spoil(reply)
            assert await load(client, engine) == {}
        engine.spoil(Reply("{}", delay_s=1.0))
        assert await read_load(client, EngineAddress(kind, engine.url), 0.1) == {}
        url = engine.url
    assert await read_load(client, EngineAddress(kind, url), 5) == {}


# Whose rows, and which rank's


@pytest.mark.parametrize("kind", EngineKind)
async def test_of_a_shared_page_only_rows_of_the_own_model_count(client: HttpClient, kind: EngineKind) -> None:
    name = "vllm:num_requests_running" if kind is EngineKind.VLLM else "sglang:num_running_reqs"
    rows = {"m": 1, "other": 50}
    page = "".join(f'{name}{{model_name="{model}"}} {value}\n' for model, value in rows.items())
    with FakeEngine(kind) as engine:
        engine.spoil(HTML, "/v1/loads")
        engine.spoil(Reply(page, content_type="text/plain"), "/metrics")
        address = EngineAddress(kind, engine.url)
        assert (await read_load(client, address, 5, {"m", "/models/m"}))[0].running == 1
        assert (await read_load(client, address, 5, {"other"}))[0].running == 50
        assert await read_load(client, address, 5, {"third"}) == {}
        engine.spoil(Reply(f'{name}{{model_name="alias"}} 3\n', content_type="text/plain"), "/metrics")
        assert (await read_load(client, address, 5, {"m"}))[0].running == 3


async def test_another_models_sleep_is_not_taken_for_ones_own(client: HttpClient) -> None:
    row = 'vllm:engine_sleep_state{{engine="0",model_name="{}",sleep_state="awake"}} {}\n'
    with FakeEngine(EngineKind.VLLM) as engine:
        for own, other in ((1, 0), (0, 1)):
            page = row.format("m", own) + row.format("other", other)
            engine.spoil(Reply(page, content_type="text/plain"), "/metrics")
            loads = await read_load(client, EngineAddress(engine.kind, engine.url), 5, {"m"})
            assert loads[0].asleep is (own == 0)


async def test_loads_are_asked_for_with_the_key(client: HttpClient) -> None:
    with FakeEngine(EngineKind.SGLANG, api_key="k-1", guarded=("/metrics",)) as engine:
        assert await load(client, engine) == {}
        assert (await read_load(client, EngineAddress(engine.kind, engine.url, "k-1"), 5))[0].running == 0


@pytest.mark.parametrize(
    ("told", "ranks", "by_place"),
    [
        ((0, 1), (0, 1), {0: 0, 1: 1}),
        ((2, 3), (2, 3), {0: 2, 1: 3}),
        ((0, 1), (2, 3), {0: 0, 1: 1}),
        ((0, 1), (1, 2), {0: 0, 1: 1}),
        ((3,), (3,), {0: 3}),
        ((0,), (3,), {0: 0}),
        ((0, 5), (0, 5), {0: 0, 1: 5}),
        ((5,), (0, 5), {1: 5}),
        ((0, 1, 2, 3), (2, 3), {0: 2, 1: 3}),
        ((), (0, 1), {}),
    ],
)
def test_loads_are_put_in_the_place_of_their_rank(
    told: tuple[int, ...], ranks: tuple[int, ...], by_place: dict[int, int]
) -> None:
    loads = {rank: EngineLoad(rank, None, None, None) for rank in told}
    assert of_ranks(loads, ranks) == {place: loads[rank] for place, rank in by_place.items()}
