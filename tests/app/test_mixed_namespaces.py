"""SGLang's default format does not tell whose blocks are an adapter's or an extra_key's: trust says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from app import ingest
from index.worker import EngineKind
from tests.support.engine_events import CLEARED, prompt, sglang_stored, vllm_stored
from tests.support.fake_engine import FakeEngine
from tests.support.fleet import fleet, instance, publish, wait_for_seq
from tests.support.publisher import Publisher, batch
from tests.support.service import Running, serving, u32, wait_until

ASKED, OTHER = prompt(1), prompt(2)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are at their engine at once."""
    monkeypatch.setattr(ingest, "ON_ITS_WAY_S", 0.0)


@contextmanager
def one(kind: EngineKind = EngineKind.SGLANG, **fields: Any) -> Iterator[tuple[Running, Publisher, FakeEngine]]:
    """The service with one engine that holds a prompt of the base model, exactly."""
    stored = sglang_stored if kind is EngineKind.SGLANG else vllm_stored
    with Publisher() as publisher, FakeEngine(kind, **fields) as engine:
        engine.events, engine.replay = publisher.events, publisher.replay
        with serving(fleet(instance("a", publisher, engine))) as run:
            wait_until(lambda: run.instance("a")["version"] is not None, 10)
            publish(run, "a", publisher, CLEARED, stored(ASKED))
            wait_until(lambda: trust(run) == "exact", 10)
            yield run, publisher, engine


def trust(run: Running) -> object:
    return run.worker("a")["trust"]


def ask(run: Running, form: str = "json", **fields: Any) -> dict[str, Any]:
    """Route a prompt the short way."""
    if form == "json":
        answer = run.http.post("/route", json={"model": "m", "token_ids": ASKED} | fields)
    else:
        headers = {"content-type": "application/octet-stream"}
        answer = run.http.post("/route", params={"model": "m"} | fields, content=u32(ASKED), headers=headers)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


@pytest.mark.parametrize("form", ["json", "octets"])
@pytest.mark.parametrize("explain", [False, True])
def test_trust_is_partial_from_the_first_request_with_an_extra_key_on(form: str, explain: bool) -> None:
    with one() as (run, _, _):
        assert ask(run)["trust"] == "exact"
        shown = {"explain": explain if form == "json" else "1"} if explain else {}
        assert ask(run, form, extra_key="tenant", **shown)["trust"] == "partial"
        assert ask(run)["trust"] == "partial"
        assert trust(run) == "partial"
        assert '"format": "dynamo"' in run.worker("a")["advice"]
        assert run.candidates(ASKED, model="m")["a"]["trust"] == "partial"


def test_an_adapter_counts_too() -> None:
    with one() as (run, _, engine):
        engine.adapters["sql"] = "/l/sql"
        assert ask(run, model="m:sql")["trust"] == "partial"
        del engine.adapters["sql"]  # of which the list says nothing any more
        wait_until(lambda: run.instance("a")["adapters"] == {}, 10)
        assert trust(run) == "partial"


@pytest.mark.parametrize("fields", [{"cache_salt": "s"}, {"extra_key": ""}, {"extra_key": "tenant", "dry_run": True}])
def test_what_sends_no_such_request_changes_nothing(fields: dict[str, Any]) -> None:
    with one() as (run, _, _):
        ask(run, **fields)
        assert trust(run) == "exact"


@pytest.mark.parametrize(("kind", "fields"), [(EngineKind.SGLANG, {"dynamo": True}), (EngineKind.VLLM, {})])
def test_engines_that_tell_them_apart_stay_exact(kind: EngineKind, fields: dict[str, Any]) -> None:
    with one(kind, **fields) as (run, _, _):
        ask(run, extra_key="tenant")
        assert trust(run) == "exact"


def test_a_clear_of_the_engine_ends_it_and_one_that_is_replayed_does_not() -> None:
    with one() as (run, publisher, engine):
        ask(run, extra_key="tenant")
        engine.model = "other"
        wait_until(lambda: trust(run) == "none", 10)
        engine.model = "m"  # everything is fetched again, and begins with the clear of the start
        wait_until(lambda: run.worker("a")["blocks"]["gpu"] == len(ASKED), 10)
        assert run.worker("a")["replayed_batches"] > 0
        assert trust(run) == "partial"
        publish(run, "a", publisher, CLEARED)
        assert trust(run) == "exact"
        assert run.worker("a")["advice"] is None


def test_a_request_on_its_way_outlives_a_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "ON_ITS_WAY_S", 60.0)
    with one() as (run, publisher, _):
        ask(run, extra_key="tenant")
        publish(run, "a", publisher, CLEARED)
        assert trust(run) == "partial"


def test_a_new_process_ends_it() -> None:
    with one() as (run, publisher, engine):
        ask(run, extra_key="tenant")
        engine.restart()
        publisher.restart()
        publisher.wait_for_subscriber()
        publisher.publish_all([batch(events=[CLEARED]), batch(events=[sglang_stored(OTHER)])])
        wait_for_seq(run, "a", 1)
        wait_until(lambda: trust(run) == "exact", 10, lambda: run.instance("a"))
