"""Endpoints of ranks: what settings may say, and where each rank is then followed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from pydantic import ValidationError

from app.instance import NO_FACTS
from app.instance_settings import InstanceSettings
from app.rank_endpoints import Numbers, Place
from app.settings_file import faults
from index.worker import EngineKind
from tests.support.engine_events import prompt, vllm_stored
from tests.support.fake_engine import FakeEngine, RankLoad, Reply
from tests.support.fleet import fleet, instance, publish
from tests.support.publisher import Publisher, ranks
from tests.support.service import Running, serving, wait_until

OWN = {"id": "a", "engine": "vllm", "model": "m", "url": "http://node:8000"}
TWO = ["tcp://h0:5557", "tcp://h1:5557"]


def settings(**fields: Any) -> InstanceSettings:
    return InstanceSettings.model_validate(OWN | fields)


def fault(**fields: Any) -> tuple[str, str]:
    """The key and the sentence of the first fault."""
    with pytest.raises(ValidationError) as caught:
        settings(**fields)
    found = faults(caught.value, InstanceSettings)[0]
    return found.key, found.sentence


@pytest.mark.parametrize(
    ("fields", "key", "words"),
    [
        ({"events": []}, "events", "at least 1"),
        ({"events": {}}, "events", "at least 1"),
        ({"events": ["tcp://h:1"] * 1025}, "events", "at most 1024"),
        ({"events": 5}, "events", "a list of them, or a map"),
        ({"events": ["tcp://h0:1", "udp://h1:1"]}, "events.1", "must begin with tcp://"),
        ({"events": ["tcp://h0:1", 7]}, "events.1", "text"),
        ({"events": ["tcp://h0:1", None]}, "events.1", "must be"),
        ({"events": {"0": "tcp://h0:1", "1": "tcp://h1:0"}}, "events.1", "port of 1 to 65535"),
        ({"events": {"x": "tcp://h0:1"}}, "events.x", "a rank's number"),
        ({"events": {"-1": "tcp://h0:1"}}, "events.-1", "a rank's number"),
        ({"events": {"01": "tcp://h0:1"}}, "events.01", "a rank's number"),
        ({"events": {"9" * 30: "tcp://h0:1"}}, "events." + "9" * 30, "a rank's number"),
        ({"events": [TWO[0], TWO[0]]}, "events.1", "two ranks on one stream: it is the same endpoint as events.0"),
        ({"events": ["tcp://H0:1", "tcp://h0:1"]}, "events.1", "two ranks on one stream"),
        ({"events": ["tcp://*:1", "tcp://node:1"]}, "events.1", "two ranks on one stream"),
        ({"events": {"2": TWO[0], "3": TWO[0]}}, "events.3", "the same endpoint as events.2"),
        ({"replay": [TWO[0], TWO[0]]}, "replay.1", "two ranks on one stream"),
        ({"events": TWO, "dp_size": 3}, "events", "has 2 endpoints, one for each rank, but dp_size is 3"),
        ({"events": TWO, "replay": ["tcp://h0:9"]}, "replay", "has 1 endpoints, one for each rank, but events has 2"),
        ({"events": {"0": TWO[0], "1": TWO[1]}, "dp_size": 1}, "events", "of 2 ranks, but dp_size is 1"),
        ({"events": TWO, "replay": ["tcp://h0:9", TWO[0]]}, "replay.1", "also an event endpoint: events.0"),
        ({"events": TWO, "replay": TWO}, "replay.0", "also an event endpoint: events.0"),
        ({"events": TWO, "replay": "tcp://h1:5556"}, "replay", "also an event endpoint: events.1"),
        ({"events": "tcp://h0:5557", "replay": ["tcp://h0:9", "tcp://h0:5558"]}, "replay.1", "endpoint: events"),
        ({"events": "ipc:///run/kv", "replay": ["tcp://h0:9", "tcp://h1:9"]}, "events", "no port to count ranks on"),
        ({"events": "tcp://h0:65535", "replay": ["tcp://h0:9", "tcp://h1:9"]}, "events", "above 65535"),
    ],
)
def test_what_cannot_be_meant_is_named_with_its_place(fields: dict[str, Any], key: str, words: str) -> None:
    found = fault(**fields)
    assert found[0] == key
    assert words in found[1]
    assert "(list)" not in found[1]


def test_a_list_says_how_many_ranks_there_are() -> None:
    assert settings(events=TWO).rank_count == 2
    assert settings(replay=TWO).rank_count == 2
    assert settings(events={"0": TWO[0]}).rank_count is None
    assert settings(events={"0": TWO[0]}, dp_size=2).rank_count == 2
    assert settings(events=["ipc:///run/a", "ipc:///run/b"]).rank_count == 2
    for form in (TWO, {"2": TWO[0], "3": TWO[1]}):
        assert InstanceSettings.model_validate(settings(events=form).model_dump(mode="json")).events == form


def placed(fields: dict[str, Any], count: int, **facts: Any) -> list[tuple[str | None, str | None]]:
    own, told = settings(**fields), NO_FACTS._replace(**facts)
    places = [Place(own.url, told, Numbers(told, own.events), rank) for rank in range(count)]
    return [(place.events(own.events), place.replay(own.replay, own.events)) for place in places]


def test_one_endpoint_is_counted_on_by_the_engines_own_numbers() -> None:
    both = {"events": "tcp://*:5557", "replay": "tcp://*:5657"}
    assert placed(both, 2) == [("tcp://node:5557", "tcp://node:5657"), ("tcp://node:5558", "tcp://node:5658")]
    assert placed(both, 2, ranks=(2, 3)) == [
        ("tcp://node:5559", "tcp://node:5659"),
        ("tcp://node:5560", "tcp://node:5660"),
    ]
    assert placed(both, 1, ranks=(3,), events={0: "tcp://node:5557"})[0][0] == "tcp://node:5557"
    with pytest.raises(ValueError, match="rank 99999 would be at port"):
        placed(both, 1, ranks=(99_999,))


def test_a_list_is_in_the_order_of_the_ranks_and_a_map_is_by_their_numbers() -> None:
    told = {
        "events": {0: "tcp://node:5559", 1: "tcp://node:5560"},
        "replay": {0: "tcp://node:5659", 1: "tcp://node:5660"},
    }
    facts = told | {"ranks": (2, 3), "dp_size": 2}
    assert placed({"events": TWO, "replay": ["tcp://*:1", "tcp://h1:1"]}, 2, **facts) == [
        (TWO[0], "tcp://node:1"),
        (TWO[1], "tcp://h1:1"),
    ]
    assert placed({"events": {"3": "tcp://h1:5560"}}, 2, **facts) == [
        ("tcp://node:5559", "tcp://node:5659"),
        ("tcp://h1:5560", "tcp://h1:5660"),  # its replay is at its host, too
    ]
    assert placed({"events": {"2": TWO[0], "3": TWO[1]}}, 2) == [(TWO[0], None), (TWO[1], None)]


# In the service


def test_ranks_on_other_hosts_are_followed_where_a_list_says() -> None:
    for form in (list, dict):
        with ExitStack() as stack:
            publishers = [stack.enter_context(Publisher(host=host)) for host in ("127.0.0.1", "127.0.0.2")]
            engine = stack.enter_context(FakeEngine(EngineKind.VLLM))
            given = [one.events for one in publishers], [one.replay for one in publishers]
            events, replay = given if form is list else (_by_rank(given[0]), _by_rank(given[1]))
            run = stack.enter_context(serving(fleet()))
            body = instance("a", server=engine, events=events, replay=replay)
            assert run.http.post("/instances", json=body).status_code == 201
            for rank, publisher in enumerate(publishers):
                publish(run, "a", publisher, vllm_stored(prompt(10 + rank)), rank=rank)
            assert [run.route(prompt(10 + rank), model="m")["dp_rank"] for rank in (0, 1)] == [0, 1]
            assert run.http.post("/instances", json=body).status_code == 200


def _by_rank(endpoints: Sequence[str | None]) -> dict[str, str | None]:
    return {str(rank): endpoint for rank, endpoint in enumerate(endpoints)}


def test_a_wrong_rank_is_422_with_its_field() -> None:
    with serving(fleet()) as run:
        for body, field in (
            ({"events": ["tcp://h0:1", "x"]}, "events.1"),
            ({"events": {"0": "tcp://h0:1", "1": "tcp://h0:1"}}, "events.1"),
            ({"events": True}, "events"),
        ):
            answer = run.http.post("/instances", json=instance("a") | body)
            assert (answer.status_code, answer.json()["field"]) == (422, field)


def test_a_node_of_several_is_steered_by_its_place_and_shown_with_the_engines_number() -> None:
    with ExitStack() as stack:
        publishers = [stack.enter_context(one) for one in ranks(2)]
        engine = stack.enter_context(FakeEngine(EngineKind.VLLM, own_ranks=(2, 3)))
        engine.events, engine.replay = _two_before(publishers[0].events), _two_before(publishers[0].replay)
        engine.loads = {2: RankLoad(running=7), 3: RankLoad(running=1)}
        both = {"events": engine.events, "replay": engine.replay}
        for given in ({}, both, {"events": publishers[0].events, "replay": publishers[0].replay}):
            with serving(fleet(instance("a", server=engine, **given))) as run:
                for rank, publisher in enumerate(publishers):
                    wait_until(lambda rank=rank: len(run.instance("a")["workers"]) == 2, 10)  # type: ignore[misc]
                    publish(run, "a", publisher, vllm_stored(prompt(rank)), rank=rank)
                answer = run.route(prompt(1), model="m")
                assert (answer["dp_rank"], answer["matched_tokens"]) == (1, 64)
                assert answer["headers"] == {"X-data-parallel-rank": "1"}
                assert [one["engine_rank"] for one in run.instance("a")["workers"]] == [2, 3]
                wait_until(lambda: _running(run) == [7, 1], 5, lambda: _running(run))
                assert run.instance("a")["warning"] is None


def _two_before(endpoint: str | None) -> str:
    assert endpoint is not None
    base, _, port = endpoint.rpartition(":")
    return f"{base}:{int(port) - 2}"


def _running(run: Running) -> list[float | None]:
    known = run.service.around.fleet.get("a")
    return [one.load and one.load.running for one in known.workers.values()] if known else []


def test_a_rank_number_that_no_port_has_is_advice_not_a_crash() -> None:
    with FakeEngine(EngineKind.VLLM, own_ranks=(99_999,)) as engine:
        engine.spoil(Reply('{"99999": {"endpoint": "tcp://*:40000"}}'), "/kv_event_sources")
        with serving(fleet(instance("a", server=engine, events="tcp://127.0.0.1:5557"))) as run:
            wait_until(lambda: "rank 99999 would be at port" in (run.worker("a")["advice"] or ""), 5)
