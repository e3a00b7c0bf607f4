"""A name that nobody is known to serve is looked up at once; engines are not asked more for it than they bear."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from app.instance import Instance
from app.instance_settings import InstanceSettings
from app.look_ups import LATELY_S, MAX_WAITING, LookUps
from index.worker import EngineKind
from tests.support.engine_events import prompt
from tests.support.fake_engine import FakeEngine, Reply
from tests.support.fleet import fleet, instance
from tests.support.service import Running, serving, u32, wait_until

ASKED = prompt(1)
SELDOM = {"load_interval_s": 0.2, "discovery_interval_s": 60.0, "timeout_s": 1.0}
"""Nothing is learnt by itself within a test."""
VLLM, SGLANG = EngineKind.VLLM, EngineKind.SGLANG


@contextmanager
def two(kind: EngineKind = VLLM) -> Iterator[tuple[Running, FakeEngine, FakeEngine]]:
    """The service with two engines that were looked at."""
    with FakeEngine(kind) as first, FakeEngine(kind) as second:
        settings = fleet(instance("a", server=first), instance("b", server=second), polling=SELDOM)
        with serving(settings) as run:
            wait_until(lambda: all(run.instance(name)["version"] for name in "ab"), 10)
            yield run, first, second


@pytest.mark.parametrize("form", ["json", "octets"])
@pytest.mark.parametrize(
    "fields", [{"model": "sql"}, {"model": "m", "lora": "sql"}, {"model": "m", "lora_path": "sql"}, {"model": "m:sql"}]
)
def test_an_adapter_that_was_just_loaded_is_found(fields: dict[str, str], form: str) -> None:
    """The short path leaves such requests to the ordinary one."""
    with two(SGLANG) as (run, _, engine):
        assert run.http.post("/route", json={"token_ids": ASKED, "model": "m"}).status_code == 200
        engine.adapters["sql"] = "/l/sql"
        began = time.monotonic()
        if form == "json":
            answer = run.http.post("/route", json={"token_ids": ASKED} | fields)
        else:
            headers = {"content-type": "application/octet-stream"}
            answer = run.http.post("/route", params=fields, content=u32(ASKED), headers=headers)
        assert (answer.status_code, answer.json().get("instance")) == (200, "b")
        assert time.monotonic() - began < 5.0


def test_the_index_is_asked_likewise() -> None:
    with two() as (run, engine, _):
        engine.aliases = ("prod",)
        found = run.candidates(ASKED, model="prod")
        assert {name for name, one in found.items() if one["eligible"]} == {"a"}


def test_a_known_name_waits_for_nothing() -> None:
    with two() as (run, engine, other):
        for one in (engine, other):
            one.spoil(Reply("{}", delay_s=30), "/v1/models", "/version", "/metrics", "/kv_event_sources")
        began = time.monotonic()
        for _ in range(20):
            assert run.http.post("/route", json={"token_ids": ASKED, "model": "m"}).status_code == 200
        assert time.monotonic() - began < 10.0  # of 20 that would wait more than a second each


def test_hostile_names_cost_the_engines_a_bounded_number_of_looks() -> None:
    with two() as (run, engine, _), ThreadPoolExecutor(16) as pool:
        before, began = engine.calls["/version"], time.monotonic()  # a look asks for it, a beat does not
        asked = [{"model": f"no{number}:x{number}", "token_ids": [1]} for number in range(100)]
        statuses = [one.status_code for one in pool.map(lambda body: run.http.post("/route", json=body), asked)]
        assert statuses == [404] * 100
        looks, took_s = engine.calls["/version"] - before, time.monotonic() - began
        assert looks <= took_s / 0.5 + 2, (looks, took_s)


def test_an_engine_that_hangs_delays_the_answer_by_a_bounded_time() -> None:
    with two() as (run, engine, other):
        engine.spoil(Reply("{}", delay_s=30), "/v1/models", "/version", "/metrics", "/kv_event_sources")
        began = time.monotonic()
        assert run.http.post("/route", json={"token_ids": ASKED, "model": "nobody"}).status_code == 404
        assert time.monotonic() - began < 5.0
        other.adapters["sql"] = "/l/sql"
        answer = run.http.post("/route", json={"token_ids": ASKED, "model": "sql"})
        assert (answer.status_code, answer.json().get("instance")) == (200, "b")


def test_an_adapter_known_elsewhere_is_looked_for_without_waiting() -> None:
    with two() as (run, engine, other):
        engine.adapters["sql"] = "/l/sql"
        assert run.route(ASKED, model="sql")["instance"] == "a"
        other.adapters["sql"] = "/l/sql"

        def routed() -> set[str]:
            return {one["instance"] for one in run.route(ASKED, model="sql")["candidates"] if one["eligible"]}

        wait_until(lambda: routed() == {"a", "b"}, LATELY_S + 3)


def some(*names: str) -> list[Instance]:
    fields: dict[str, Any] = {"engine": "vllm", "model": "m"}
    return [Instance(InstanceSettings.model_validate(fields | {"id": one, "url": f"http://{one}"})) for one in names]


async def test_no_more_requests_wait_than_are_allowed() -> None:
    look_ups, loop = LookUps(), asyncio.get_running_loop()
    never: asyncio.Future[None] = loop.create_future()
    look_ups.look = lambda instance_id: never
    waiting = [loop.create_task(look_ups.wait(some("a"), lambda: False)) for _ in range(MAX_WAITING)]
    await asyncio.sleep(0)
    async with asyncio.timeout(0.5):
        await look_ups.wait(some("a"), lambda: False)
    assert not any(task.done() for task in waiting)
    never.set_result(None)
    await asyncio.gather(*waiting)


async def test_the_first_engine_that_has_it_ends_the_wait() -> None:
    look_ups, loop = LookUps(), asyncio.get_running_loop()
    looks = {name: loop.create_future() for name in "abc"}
    look_ups.look = looks.get
    found: list[str] = []
    waiting = loop.create_task(look_ups.wait(some(*"abc"), lambda: bool(found)))
    await asyncio.sleep(0)
    looks["a"].set_result(None)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    found.append("b")
    looks["b"].set_result(None)
    async with asyncio.timeout(0.5):
        await waiting


async def test_engines_that_do_not_answer_are_not_waited_for() -> None:
    look_ups, asked = LookUps(), list[str]()
    look_ups.look = asked.append
    gone, alive = some("a", "b")
    gone.contact = gone.contact.refused(1.0, "nobody listens")
    await look_ups.wait([gone, alive], lambda: False)
    look_ups.soon([gone, alive], 100.0)
    alive.listed_at = 100.0
    look_ups.soon([alive], 100.0 + LATELY_S)
    assert asked == ["b", "b"]
