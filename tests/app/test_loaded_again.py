"""LoRA adapters that are loaded again at run time: blocks of former weights are not promised, or not as exact."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from app.adapters import take_list
from app.instance import NO_FACTS, AdapterDoubt, Instance
from app.instance_settings import InstanceSettings
from index.page_hash import lora_id, namespaced
from index.worker import EngineKind
from tests.support.engine_events import CLEARED, prompt, sglang_stored, vllm_stored
from tests.support.fake_engine import HTML, FakeEngine, Reply
from tests.support.fleet import fleet, instance, matched, publish
from tests.support.publisher import Publisher, batch
from tests.support.service import Running, serving, wait_until

V1, V2 = "/adapters/v1", "/adapters/v2"
ASKED, OTHER = prompt(1), prompt(2)
SELDOM = {"load_interval_s": 0.2, "discovery_interval_s": 60.0, "timeout_s": 1.0}
"""Nothing is learnt by itself within a test."""
IDS = ("0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210")


@contextmanager
def fleet_of(
    *adapters: dict[str, str], kind: EngineKind = EngineKind.VLLM, told: bool = True, **sections: Any
) -> Iterator[tuple[Running, list[Publisher], list[FakeEngine]]]:
    """The service with an instance (a, b, ...) for each of these lists of adapters."""
    with ExitStack() as stack:
        publishers = [stack.enter_context(Publisher()) for _ in adapters]
        engines = [stack.enter_context(FakeEngine(kind, adapters=dict(one), dynamo=True)) for one in adapters]
        for engine, publisher in zip(engines, publishers, strict=True):
            engine.events = publisher.events if told else None
        settings = [instance(*both) for both in zip("abc", publishers, engines, strict=False)]
        run = stack.enter_context(serving(fleet(*settings, **sections)))
        for name, one in zip("abc", adapters, strict=False):
            wait_until(lambda name=name, one=one: listed(run, name) == one, 10)  # type: ignore[misc]
            wait_until(lambda name=name: run.instance(name)["version"] is not None, 10)  # type: ignore[misc]
        yield run, publishers, engines


def listed(run: Running, name: str = "a") -> object:
    return run.instance(name)["adapters"]


def trust(run: Running, name: str = "a", **fields: Any) -> object:
    """What an answer may claim of a request for the adapter."""
    return run.candidates(ASKED, **({"model": "sql"} | fields))[name]["trust"]


def stored(tokens: list[int], loaded_as: str) -> dict[str, Any]:
    """SGLang's pages of an adapter that has this id, in the dynamo format."""
    plain = sglang_stored(tokens)
    hashes = [namespaced(one, loaded_as, None) for one in plain["block_hashes"]]
    return plain | {"block_hashes": hashes, "lora_name": "sql"}


# vLLM


def test_blocks_of_the_former_path_are_not_promised_after_the_list_shows_the_new_one() -> None:
    with fleet_of({}) as (run, (publisher,), (engine,)):
        engine.adapters["sql"] = V1
        wait_until(lambda: listed(run) == {"sql": V1}, 10)
        publish(run, "a", publisher, CLEARED, vllm_stored(OTHER), vllm_stored(ASKED, lora=("sql", V1)))
        assert matched(run, ASKED, model="sql") == {"a": 64}
        del engine.adapters["sql"]
        wait_until(lambda: listed(run) == {}, 10)
        engine.adapters["sql"] = V2
        wait_until(lambda: listed(run) == {"sql": V2}, 10)
        assert matched(run, ASKED, model="sql") == {"a": 0}
        publish(run, "a", publisher, vllm_stored(ASKED, lora=("sql", V2)))
        assert matched(run, ASKED, model="sql") == {"a": 64}


@pytest.mark.parametrize("elsewhere", [True, False])
def test_the_first_event_of_another_path_ends_the_promise_of_the_former_blocks(elsewhere: bool) -> None:
    """`elsewhere`: the new path is known, from another instance."""
    other = {"sql": V2} if elsewhere else {}
    with fleet_of({"sql": V1}, other, polling=SELDOM) as (run, (publisher, _), (engine, _)):
        publish(run, "a", publisher, CLEARED, vllm_stored(OTHER), vllm_stored(ASKED, lora=("sql", V1)))
        assert matched(run, ASKED, model="sql")["a"] == 64
        engine.adapters["sql"] = V2
        publish(run, "a", publisher, vllm_stored(OTHER, lora=("sql", V2)))
        assert matched(run, ASKED, model="sql")["a"] == 0
        wait_until(lambda: listed(run) == {"sql": V2}, 10)  # it was asked for
        assert matched(run, ASKED, model="sql")["a"] == 0
        wait_until(lambda: matched(run, OTHER, model="sql")["a"] == 64, 10)


def test_late_events_of_a_former_path_cost_the_present_one_a_look() -> None:
    with fleet_of({"sql": V2}, {"sql": V1}, polling=SELDOM) as (run, (publisher, _), _):
        publish(run, "a", publisher, CLEARED, vllm_stored(OTHER), vllm_stored(ASKED, lora=("sql", V2)))
        publish(run, "a", publisher, vllm_stored(OTHER, lora=("sql", V1)))
        wait_until(lambda: matched(run, ASKED, model="sql")["a"] == 64, 10)
        assert matched(run, OTHER, model="sql")["a"] == 0


def test_an_engine_that_was_seen_to_load_adapters_is_not_exact_about_them() -> None:
    with fleet_of({"sql": V1}, {"sql": V1}) as (run, publishers, (engine, _)):
        for name, publisher in zip("ab", publishers, strict=True):
            publish(run, name, publisher, CLEARED, vllm_stored(ASKED), vllm_stored(ASKED, lora=("sql", V1)))
        assert (trust(run, "a"), trust(run, "b")) == ("exact", "exact")
        engine.adapters["chat"] = V2
        wait_until(lambda: "chat" in run.instance("a")["adapters"], 10)
        assert (trust(run, "a"), trust(run, "b")) == ("partial", "exact")
        assert trust(run, "a", model="m") == "exact"
        answer = run.http.post("/route", json={"model": "sql", "token_ids": ASKED, "candidates": ["a"]}).json()
        assert (answer["reusable_tokens"], answer["trust"]) == (48, "partial")
        engine.restart()  # with both: it may be another now
        publishers[0].restart()
        publishers[0].wait_for_subscriber()
        publishers[0].publish_all([batch(events=[CLEARED])])
        wait_until(lambda: trust(run, "a") == "exact", 10, lambda: run.instance("a"))


def test_an_adapter_that_is_not_listed_is_not_exact() -> None:
    with Publisher() as publisher, FakeEngine(EngineKind.VLLM, adapters={"sql": V1}) as engine:
        engine.spoil(HTML, "/v1/models")
        with serving(fleet(instance("a", publisher, engine))) as run:
            wait_until(lambda: run.instance("a")["version"] is not None, 10)
            publish(run, "a", publisher, CLEARED, vllm_stored(ASKED, lora=("sql", V1)))
            assert run.worker("a")["trust"] == "exact"
            assert trust(run, model="m", lora="sql") == "partial"


# SGLang


def started(publisher: Publisher) -> FakeEngine:
    """An engine that was started with the adapter, and sends the dynamo format."""
    return FakeEngine(EngineKind.SGLANG, adapters={"sql": V1}, dynamo=True, events=publisher.events)


@pytest.mark.parametrize("extra_keys", [None, False])
def test_an_adapter_loaded_again_through_the_api_is_not_exact_once_a_page_has_two_names(
    extra_keys: bool | None,
) -> None:
    """Between two looks; where extra_keys are excluded, the second name proves the other load."""
    with Publisher() as publisher, started(publisher) as engine:
        settings = instance("a", publisher, engine, adapter_extra_keys=extra_keys)
        with serving(fleet(settings, polling=SELDOM)) as run:
            wait_until(lambda: listed(run) == {"sql": V1}, 10)
            publish(run, "a", publisher, CLEARED, stored(ASKED, IDS[0]), stored(OTHER, IDS[0]))
            assert matched(run, OTHER, model="sql") == {"a": 64}
            assert trust(run) == "exact"
            publish(run, "a", publisher, stored(ASKED, IDS[1]))
            proven = extra_keys is False
            assert matched(run, OTHER, model="sql") == {"a": 0 if proven else 64}
            assert trust(run) == ("exact" if proven else "partial")
            assert trust(run, model="m") == "exact"
            publish(run, "a", publisher, CLEARED)
            assert trust(run) == "exact"


@pytest.mark.parametrize("extra_keys", [None, True])
def test_an_adapter_of_the_start_is_not_exact_once_another_id_shows(extra_keys: bool | None) -> None:
    with Publisher() as publisher, started(publisher) as engine:
        settings = instance("a", publisher, engine, adapter_extra_keys=extra_keys)
        with serving(fleet(settings, polling=SELDOM)) as run:
            wait_until(lambda: listed(run) == {"sql": V1}, 10)
            publish(run, "a", publisher, CLEARED, stored(ASKED, lora_id("sql", V1)))
            assert (matched(run, ASKED, model="sql"), trust(run)) == ({"a": 64}, "exact")
            publish(run, "a", publisher, stored(OTHER, IDS[0]))
            assert trust(run) == "partial"


@pytest.mark.parametrize("told", [True, False])
def test_what_was_held_of_an_sglang_adapter_is_not_promised_after_the_list_shows_an_unload(told: bool) -> None:
    """`told`: the engine says that it sends the dynamo format. Else an adapter is found by its name, if at all."""
    with fleet_of({}, kind=EngineKind.SGLANG, told=told) as (run, (publisher,), (engine,)):
        engine.adapters["sql"] = V1
        wait_until(lambda: listed(run) == {"sql": V1}, 10)
        publish(run, "a", publisher, CLEARED, stored(ASKED, IDS[0]))
        assert (matched(run, ASKED, model="sql"), trust(run)) == ({"a": 64}, "partial")
        del engine.adapters["sql"]
        wait_until(lambda: listed(run) == {}, 10)
        engine.adapters["sql"] = V1
        wait_until(lambda: listed(run) == {"sql": V1}, 10)
        assert matched(run, ASKED, model="sql") == {"a": 0}
        publish(run, "a", publisher, stored(ASKED, IDS[1]))
        assert matched(run, ASKED, model="sql") == {"a": 64 if told else 0}


# what a list means


def test_a_doubt_ends_with_a_newer_list_or_with_another_path() -> None:
    settings = {"id": "a", "engine": "vllm", "model": "m", "url": "http://a"}
    told = NO_FACTS._replace(models=("m",), adapters={"sql": V1, "chat": V2})
    one = Instance(InstanceSettings.model_validate(settings), facts=told)
    one.doubts = {"sql": AdapterDoubt(10.0, V1), "chat": AdapterDoubt(10.0, V1)}
    take_list(one, NO_FACTS, 12.0, anew=False)  # it did not say
    assert set(one.doubts) == {"sql", "chat"}
    take_list(one, told, 9.0, anew=False)
    assert set(one.doubts) == {"sql"}
    take_list(one, told, 11.0, anew=False)
    assert (one.doubts, one.adapters_moved, one.listed_at) == ({}, False, 11.0)
    take_list(one, told._replace(adapters={}), 12.0, anew=False)
    assert one.adapters_moved
    take_list(one, told, 13.0, anew=True)
    assert not one.adapters_moved


def test_where_vllm_loads_adapters_at_run_time_a_request_with_one_is_never_exact() -> None:
    with Publisher() as publisher, FakeEngine(EngineKind.VLLM, adapters={"sql": V1}) as engine:
        engine.replies["/v1/load_lora_adapter"] = Reply("{}", 405)
        with serving(fleet(instance("a", publisher, engine), polling=SELDOM)) as run:
            wait_until(lambda: listed(run) == {"sql": V1}, 10)
            publish(run, "a", publisher, vllm_stored(OTHER))
            wait_until(lambda: trust(run, model="m") == "exact", 10)
            assert trust(run) == "partial"
