"""SGLang's event format tells whose namespaces are hidden: learnt late, or lost, it must not mislead."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from index import native
from index.page_hash import lora_id, namespaced
from index.worker import EngineKind
from tests.support.cores import native_module
from tests.support.engine_events import CLEARED, prompt, sglang_stored
from tests.support.fake_engine import FakeEngine, Reply
from tests.support.fleet import fleet, instance, matched, publish, wait_for_seq
from tests.support.publisher import Publisher, batch
from tests.support.redis_server import RedisServer
from tests.support.service import Running, serving, wait_until

PLAIN, TENANT, ADAPTER = prompt(1), prompt(2), prompt(3)
PATH = "/adapters/sql"
RANDOM_ID = "0123456789abcdef0123456789abcdef"
SILENT = Reply("{}", 503)
Asked = tuple[list[int], dict[str, Any]]
"""A prompt, and what a request says of its namespace."""


@pytest.fixture(autouse=True, params=["python", "native"])
def core(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The core in which the service's index is made."""
    if request.param == "native":
        native_module()
    monkeypatch.setattr(native, "CORE", native.chosen(request.param))


@contextmanager
def listed(adapters: dict[str, str], **declared: bool | None) -> Iterator[tuple[Running, Publisher, FakeEngine]]:
    """The service with an engine that sends the dynamo format and lists these adapters."""
    with (
        Publisher() as publisher,
        engine_with(publisher, dynamo=True, adapters=dict(adapters)) as engine,
        serving(fleet(instance("a", publisher, engine, **declared))) as run,
    ):
        wait_until(lambda: run.instance("a")["version"] is not None, 15)
        yield run, publisher, engine


@contextmanager
def engine_with(publisher: Publisher, **fields: Any) -> Iterator[FakeEngine]:
    with FakeEngine(EngineKind.SGLANG, block_size=1, events=publisher.events, replay=publisher.replay, **fields) as one:
        yield one


def stored(tokens: list[int], extra_key: str, lora: str | None = None) -> dict[str, Any]:
    """A prompt's pages under an extra_key, in the dynamo format."""
    plain = sglang_stored(tokens)
    hashes = [namespaced(one, extra_key, None) for one in plain["block_hashes"]]
    return plain | {"block_hashes": hashes} | ({"lora_name": lora} if lora else {})


def untold(engine: FakeEngine) -> Reply:
    """`/server_info` of an engine that does not show its event format."""
    info = {"version": "0.5.23", "page_size": 1, "startup_time": {"scheduler_e2e": engine.started_at / 1e7}}
    return Reply(json.dumps(info))


def answers(run: Running, *asked: Asked) -> list[int]:
    return [matched(run, tokens, **fields)["a"] for tokens, fields in asked]


def keys(server: RedisServer, ending: str) -> list[bytes]:
    found = server.command("KEYS", f"*:{ending}")
    assert isinstance(found, list)
    return found


def stored_seq(server: RedisServer) -> int:
    """The last batch of the only worker that is stored, in its log or as a snapshot."""
    (snapshot,) = keys(server, "snap")
    found = [server.command("HGET", snapshot, "s")]
    for log in keys(server, "log"):
        entries = server.command("XREVRANGE", log, "+", "-", "COUNT", "1")
        assert isinstance(entries, list)
        found += [entry[0].rpartition(b"-")[2] for entry in entries]
    return max(int(one) for one in found if isinstance(one, bytes))


TENANTS: tuple[Asked, ...] = ((TENANT, {}), (TENANT, {"extra_key": "tenant"}))
ADAPTERS: tuple[Asked, ...] = ((ADAPTER, {}), (ADAPTER, {"lora": "sql"}))


@pytest.mark.parametrize("buffer_steps", [10_000, 2])
def test_what_came_before_the_format_was_known_is_fetched_again(buffer_steps: int) -> None:
    """Also when the replay reaches back less far than the first one did."""
    with Publisher(buffer_steps=buffer_steps) as publisher, engine_with(publisher, dynamo=True) as engine:
        engine.spoil(SILENT)
        publisher.publish_all([batch(events=[CLEARED]), batch(), batch(events=[stored(TENANT, "tenant")])])
        with serving(fleet(instance("a", publisher, engine))) as run:
            wait_for_seq(run, "a", 2)
            wait_until(lambda: run.worker("a")["trust"] == "partial", 5)
            engine.mend()
            wait_until(lambda: answers(run, *TENANTS) == [0, 64], 5, lambda: answers(run, *TENANTS))
            known = "exact" if buffer_steps > 2 else "partial"
            wait_until(lambda: run.worker("a")["trust"] == known, 5, lambda: run.worker("a"))
            assert run.worker("a")["resets"] == {"format": 1}
            publish(run, "a", publisher, stored(PLAIN, "tenant"))
            assert answers(run, (PLAIN, {}), (PLAIN, {"extra_key": "tenant"})) == [0, 64]


def test_without_a_replay_what_came_before_the_format_was_known_is_dropped() -> None:
    with Publisher(replay=False) as publisher, engine_with(publisher, dynamo=True) as engine:
        engine.spoil(SILENT)
        with serving(fleet(instance("a", publisher, engine))) as run:
            publish(run, "a", publisher, CLEARED, stored(TENANT, "tenant"))
            engine.mend()
            wait_until(lambda: run.instance("a")["version"] is not None, 15)
            wait_until(lambda: answers(run, *TENANTS) == [0, 0], 5, lambda: answers(run, *TENANTS))
            assert run.worker("a")["trust"] == "partial"
            publish(run, "a", publisher, CLEARED, stored(TENANT, "tenant"))
            assert answers(run, *TENANTS) == [0, 64]
            assert run.worker("a")["trust"] == "exact"


def test_the_events_themselves_may_show_that_what_came_before_was_misread() -> None:
    with Publisher() as publisher, engine_with(publisher) as engine:
        engine.spoil(untold(engine), "/server_info")
        with serving(fleet(instance("a", publisher, engine))) as run:
            publish(run, "a", publisher, CLEARED, stored(TENANT, "tenant"))
            publisher.publish(batch(events=[sglang_stored(PLAIN)]))
            wait_until(lambda: answers(run, *TENANTS, (PLAIN, {})) == [0, 64, 64], 15)
            assert run.worker("a")["trust"] == "exact"
            assert run.worker("a")["resets"] == {"format": 1}


def test_blocks_that_are_explained_are_not_fetched_again() -> None:
    with Publisher() as publisher, engine_with(publisher, dynamo=True) as engine:
        engine.spoil(SILENT)
        with serving(fleet(instance("a", publisher, engine))) as run:
            publish(run, "a", publisher, CLEARED, sglang_stored(PLAIN))
            run.wait_for_trust("a", "exact")
            engine.mend()
            wait_until(lambda: run.instance("a")["version"] is not None, 15)
            publish(run, "a", publisher, stored(TENANT, "tenant"))
            assert answers(run, *TENANTS, (PLAIN, {})) == [0, 64, 64]
            assert run.worker("a")["resets"] == {}


@pytest.mark.parametrize("adapters", [{"sql": PATH}, {}])
@pytest.mark.parametrize("extra_keys", [True, False, None])
def test_an_adapter_loaded_through_the_api_is_found_by_its_name_unless_extra_keys_are_declared(
    adapters: dict[str, str], extra_keys: bool | None
) -> None:
    """Its id is random: with extra_keys about, what is stored under its name may be a tenant's."""
    with listed(adapters, adapter_extra_keys=extra_keys) as (run, publisher, _):
        publish(run, "a", publisher, CLEARED, sglang_stored(PLAIN), stored(ADAPTER, RANDOM_ID, "sql"))
        assert answers(run, *ADAPTERS, (ADAPTER, {"lora": "chat"})) == [0, 0 if extra_keys else 64, 0]
        assert matched(run, ADAPTER, extra_key=RANDOM_ID) == {"a": 64}
        assert run.worker("a")["trust"] == "exact"


def test_an_adapters_extra_keys_are_not_taken_for_the_adapter() -> None:
    with listed({"sql": PATH}) as (run, publisher, _):
        own = lora_id("sql", PATH)
        publish(run, "a", publisher, CLEARED, stored(PLAIN, own, "sql"), stored(ADAPTER, f"tenant{own}", "sql"))
        assert answers(run, *ADAPTERS, (PLAIN, {"lora": "sql"})) == [0, 0, 64]
        assert matched(run, ADAPTER, lora="sql", extra_key="tenant") == {"a": 64}


@pytest.mark.parametrize("extra_keys", [True, False, None])
def test_an_adapter_that_is_loaded_again_from_elsewhere_is_not_found_by_its_former_blocks(
    extra_keys: bool | None,
) -> None:
    with listed({"sql": PATH}, adapter_extra_keys=extra_keys) as (run, publisher, engine):
        publish(run, "a", publisher, CLEARED, stored(ADAPTER, lora_id("sql", PATH), "sql"))
        publish(run, "a", publisher, stored(TENANT, RANDOM_ID, "chat"))
        chat = 0 if extra_keys else 64
        assert answers(run, *ADAPTERS, (TENANT, {"lora": "chat"})) == [0, 64, chat]
        engine.adapters["sql"] = "/adapters/later"
        wait_until(lambda: run.instance("a")["adapters"] == {"sql": "/adapters/later"}, 15)
        assert answers(run, *ADAPTERS, (TENANT, {"lora": "chat"})) == [0, 0, chat]
        publish(run, "a", publisher, stored(ADAPTER, RANDOM_ID, "sql"))
        assert answers(run, *ADAPTERS) == [0, 0 if extra_keys else 64]


@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize("extra_keys", [True, False, None])
def test_an_adapter_that_is_unloaded_and_loaded_again_is_found_by_its_new_blocks_alone(
    extra_keys: bool | None, seen: bool
) -> None:
    """From the same path, with a random id now. `seen`: the list of adapters was read in between."""
    own = lora_id("sql", PATH)
    with listed({"sql": PATH}, adapter_extra_keys=extra_keys) as (run, publisher, engine):
        publish(run, "a", publisher, CLEARED, stored(ADAPTER, own, "sql"), stored(PLAIN, own, "sql"))
        assert answers(run, *ADAPTERS, (PLAIN, {"lora": "sql"})) == [0, 64, 64]
        if seen:
            be_looked_at(engine)
            del engine.adapters["sql"]
            wait_until(lambda: run.instance("a")["adapters"] == {}, 15)
            engine.adapters["sql"] = PATH
            wait_until(lambda: run.instance("a")["adapters"] == {"sql": PATH}, 15)
            assert answers(run, *ADAPTERS, (PLAIN, {"lora": "sql"})) == [0, 0, 0]
        publish(run, "a", publisher, stored(ADAPTER, RANDOM_ID, "sql"))
        if seen or extra_keys is False:  # else nothing shows it
            assert answers(run, *ADAPTERS, (PLAIN, {"lora": "sql"})) == [0, 0 if extra_keys else 64, 0]


def test_a_restart_makes_an_adapter_that_was_loaded_again_one_of_the_start(server: RedisServer) -> None:
    """And a warm start does not: the engine is the same."""
    own = lora_id("sql", PATH)
    with Publisher() as publisher, engine_with(publisher, dynamo=True, adapters={"sql": PATH}) as engine:
        settings = fleet(instance("a", publisher, engine), state=server.url)
        with serving(settings) as run:
            publish(run, "a", publisher, CLEARED, stored(ADAPTER, own, "sql"))
            wait_until(lambda: answers(run, *ADAPTERS) == [0, 64], 15)
            be_looked_at(engine)
            del engine.adapters["sql"]
            wait_until(lambda: run.instance("a")["adapters"] == {}, 15)
            engine.adapters["sql"] = PATH
            wait_until(lambda: run.instance("a")["adapters"] == {"sql": PATH}, 15)
            publish(run, "a", publisher, sglang_stored(PLAIN))
            wait_until(lambda: len(keys(server, "snap")) == 1, 15)
        with serving(settings) as run:
            wait_until(lambda: run.instance("a")["adapters"] == {"sql": PATH}, 15)
            wait_until(lambda: answers(run, (PLAIN, {})) == [64], 15)
            assert answers(run, *ADAPTERS) == [0, 0]
            engine.restart()
            publisher.restart()
            publisher.wait_for_subscriber()
            wait_until(lambda: answers(run, (PLAIN, {})) == [0], 15)
            publisher.publish(batch(events=[CLEARED, stored(ADAPTER, own, "sql")]))
            wait_until(lambda: answers(run, *ADAPTERS) == [0, 64], 15, lambda: answers(run, *ADAPTERS))


def be_looked_at(engine: FakeEngine) -> None:
    """What it lists now is known: one look that began now is over."""
    seen = engine.calls["/v1/models"]
    wait_until(lambda: engine.calls["/v1/models"] >= seen + 2, 15)


@pytest.mark.parametrize("extra_keys", [None, False])
@pytest.mark.parametrize("own", [lora_id("sql", PATH), RANDOM_ID])
def test_an_unload_that_was_seen_is_known_after_a_warm_start(
    server: RedisServer, extra_keys: bool | None, own: str
) -> None:
    """The adapter is loaded again while no router looks."""
    with Publisher() as publisher, engine_with(publisher, dynamo=True, adapters={"sql": PATH}) as engine:
        settings = fleet(instance("a", publisher, engine, adapter_extra_keys=extra_keys), state=server.url)
        with serving(settings) as run:
            publish(run, "a", publisher, CLEARED, stored(ADAPTER, own, "sql"))
            wait_until(lambda: answers(run, *ADAPTERS) == [0, 64], 15)
            wait_until(lambda: len(keys(server, "snap")) == 1, 15)
            be_looked_at(engine)
            del engine.adapters["sql"]
            wait_until(lambda: run.instance("a")["adapters"] == {}, 15)
            publish(run, "a", publisher, sglang_stored(PLAIN))
        engine.adapters["sql"] = PATH
        with serving(settings) as run:
            wait_until(lambda: run.instance("a")["adapters"] == {"sql": PATH}, 15)
            wait_until(lambda: answers(run, (PLAIN, {})) == [64], 15)
            assert answers(run, *ADAPTERS) == [0, 0]


def test_namespaces_are_known_after_a_warm_start(server: RedisServer) -> None:
    """What makes the worker's hashes readable comes after the first snapshot, which holds nothing."""
    asked: tuple[Asked, ...] = (*TENANTS, *ADAPTERS, (PLAIN, {}))
    with Publisher(buffer_steps=1) as publisher, engine_with(publisher) as engine:
        engine.spoil(untold(engine), "/server_info")
        settings = fleet(instance("a", publisher, engine, adapter_extra_keys=False), state=server.url)
        with serving(settings) as run:
            publish(run, "a", publisher, CLEARED)
            wait_until(lambda: len(keys(server, "snap")) == 1, 15)
            publish(run, "a", publisher, sglang_stored(PLAIN))
            wait_until(lambda: stored_seq(server) == 1, 15)  # mostly in the log; a process told late makes a snapshot
            publish(run, "a", publisher, stored(TENANT, "tenant"), stored(ADAPTER, RANDOM_ID, "sql"))
            assert answers(run, *asked) == [0, 64, 0, 64, 64]
        with serving(settings) as run:
            wait_for_seq(run, "a", 2)
            wait_until(lambda: answers(run, *asked) == [0, 64, 0, 64, 64], 15)
            assert run.worker("a")["trust"] == "exact"
            publish(run, "a", publisher, stored([9, *TENANT], "tenant"))
            assert answers(run, ([9, *TENANT], {}), ([9, *TENANT], {"extra_key": "tenant"})) == [0, 65]


@pytest.mark.parametrize("late", [False, True])
def test_stored_state_that_was_misread_is_not_used(server: RedisServer, late: bool) -> None:
    """Whether the format is known when the state is loaded, or only after that."""
    with Publisher() as publisher, engine_with(publisher, dynamo=True) as engine:
        engine.spoil(SILENT)
        settings = fleet(instance("a", publisher, engine), state=server.url)
        with serving(settings) as run:
            publish(run, "a", publisher, CLEARED, stored(TENANT, "tenant"))
            wait_until(lambda: len(keys(server, "snap")) == 1, 15)
        if not late:
            engine.mend()
        with serving(settings) as run:
            wait_for_seq(run, "a", 0)
            engine.mend()
            wait_until(lambda: answers(run, *TENANTS) == [0, 64], 5, lambda: answers(run, *TENANTS))
            wait_until(lambda: run.worker("a")["trust"] == "exact", 15)
