"""LoRA adapters: a name stands for the weights at the path that the engine serves it from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from index.page_hash import lora_id, namespaced
from index.worker import EngineKind
from tests.support.engine_events import prompt, sglang_stored, vllm_removed, vllm_stored
from tests.support.fake_engine import HTML, FakeEngine
from tests.support.fleet import fleet, instance, matched, rows_of, wait_for_seq
from tests.support.golden import Row, sglang_stream, vllm_stream, vllm_streams
from tests.support.publisher import Publisher, batch, ranks
from tests.support.service import Running, serving, wait_until

V1, V2 = "/adapters/sql-v1", "/adapters/sql-v2"
RECORDED = {"sql": V1, "chat": "/adapters/chat"}
ASKED = prompt(1)


@contextmanager
def one_instance(
    adapters: dict[str, str], kind: EngineKind = EngineKind.VLLM, **fields: Any
) -> Iterator[tuple[Running, Publisher, FakeEngine]]:
    """The service with instance a, its publisher, and its HTTP side."""
    with Publisher() as publisher, FakeEngine(kind, adapters=dict(adapters), **fields) as engine:
        engine.events, engine.replay = publisher.events, publisher.replay
        with serving(fleet(instance("a", publisher, engine))) as run:
            publisher.wait_for_subscriber()
            wait_for_adapters(run, "a", adapters)
            yield run, publisher, engine


def wait_for_adapters(run: Running, name: str, adapters: dict[str, str]) -> None:
    wait_until(lambda: run.instance(name)["adapters"] == adapters, 5, lambda: run.instance(name))


def publish(run: Running, publisher: Publisher, *events: Any) -> None:
    wait_for_seq(run, "a", publisher.publish(batch(events=events)))


def exactly(expected: int, run: Running, tokens: list[int], **fields: Any) -> Callable[[], bool]:
    return lambda: matched(run, tokens, **fields)["a"] == expected


def answers(adapters: dict[str, str], asked: Callable[[Row], bool]) -> dict[str, list[tuple[Row, int]]]:
    """The rows of the streams that know adapters, from engines that list `adapters`, with what is answered to each."""
    every = {name: vllm_stream(name) for name in vllm_streams()}
    streams = {name: one for name, one in every.items() if any(row.adapter_path for row in one.rows)}
    found: dict[str, list[tuple[Row, int]]] = {name: [] for name in streams}
    with ExitStack() as stack:
        engine = stack.enter_context(FakeEngine(EngineKind.VLLM, adapters=adapters, aliases=tuple(streams)))
        publishers = {name: stack.enter_context(Publisher(topic=one.topic)) for name, one in streams.items()}
        settings = [
            instance(name, publishers[name], engine, model=name, topic=one.topic, **one.settings)
            for name, one in streams.items()
        ]
        run = stack.enter_context(serving(fleet(*settings)))
        for name, one in streams.items():
            wait_for_adapters(run, name, adapters)
            for row in rows_of(run, name, publishers[name], one, asked):
                answer = run.candidates(row.tokens, model=name, **row.fields)[name]["reusable_tokens"]
                found[name].append((row, answer))
        assert {run.worker(name)["trust"] for name in streams} == {"exact"}
        assert {run.worker(name)["hash"]["status"] for name in streams} == {"verified"}
    return found


@pytest.mark.no_cover
def test_every_recorded_row_is_exact_when_adapters_have_the_recorded_paths() -> None:
    found = answers(RECORDED, lambda row: row.adapter_path not in (None, V2))
    assert len(found) >= 8
    assert sum(answer > 0 for rows in found.values() for _, answer in rows) > 20
    for name, rows in found.items():
        assert [answer for _, answer in rows] == [row.expected["reusable_tokens"] for row, _ in rows], name


@pytest.mark.no_cover
def test_blocks_of_another_path_do_not_count() -> None:
    found = answers(RECORDED | {"sql": V2}, lambda row: row.adapter_path == V2 or row.name in ("p0", "A"))
    assert sum(row.adapter_path == V2 for rows in found.values() for row, _ in rows) > 50
    for name, rows in found.items():
        assert any(answer for row, answer in rows if row.adapter_path is None), name
        assert [answer for _, answer in rows] == [row.expected["reusable_tokens"] for row, _ in rows], name


def test_an_adapter_may_be_asked_for_as_the_model() -> None:
    with one_instance({"sql": V1}) as (run, publisher, _):
        publish(run, publisher, vllm_stored(ASKED, lora=("sql", V1)))
        assert matched(run, ASKED, model="sql") == {"a": 64}
        assert matched(run, ASKED, lora="sql") == {"a": 64}
        assert matched(run, ASKED) == {"a": 0}
        answer = run.route(ASKED, model="sql")
        assert (answer["model"], answer["matched_tokens"], answer["reusable_tokens"]) == ("sql", 64, 48)
        assert run.http.post("/route", json={"model": "sql2", "token_ids": ASKED}).status_code == 404


def test_an_adapters_first_block_proves_the_identity_too() -> None:
    with one_instance({"sql": V1}) as (run, publisher, _):
        publish(run, publisher, vllm_stored(ASKED, lora=("sql", V1)))
        assert run.worker("a")["hash"]["status"] == "verified"


def test_a_path_that_changes_takes_its_blocks_out_of_answers_and_brings_them_back() -> None:
    with one_instance({"sql": V1}) as (run, publisher, engine):
        publish(run, publisher, vllm_stored(prompt(9)), vllm_stored(ASKED, lora=("sql", V1)))
        assert matched(run, ASKED, lora="sql") == {"a": 64}
        engine.adapters["sql"] = V2
        wait_for_adapters(run, "a", {"sql": V2})
        assert matched(run, ASKED, lora="sql") == {"a": 0}
        publish(run, publisher, vllm_stored(prompt(2), lora=("sql", V2)), vllm_stored(ASKED, lora=("sql", V2)))
        assert matched(run, ASKED, lora="sql") == {"a": 64}
        publish(run, publisher, vllm_removed(vllm_stored(ASKED, lora=("sql", V2))))
        assert matched(run, ASKED, lora="sql") == {"a": 0}
        engine.adapters["sql"] = V1
        wait_for_adapters(run, "a", {"sql": V1})
        assert matched(run, ASKED, lora="sql") == {"a": 64}  # still held, and hashed with this path
        assert matched(run, prompt(2), lora="sql") == {"a": 0}
        assert run.worker("a")["trust"] == "exact"
        assert run.worker("a")["wire_errors"] == {}


def test_blocks_of_a_path_that_is_learnt_later_are_found_then() -> None:
    with one_instance({"sql": V1}) as (run, publisher, engine):
        publish(run, publisher, vllm_stored(ASKED), vllm_stored(ASKED, lora=("sql", V2)))
        assert matched(run, ASKED, lora="sql") == {"a": 0}
        engine.adapters["sql"] = V2
        wait_until(exactly(64, run, ASKED, lora="sql"), 5, lambda: run.instance("a"))
        assert run.worker("a")["trust"] == "exact"
        assert matched(run, ASKED) == {"a": 64}


def test_two_instances_may_serve_one_name_from_different_paths() -> None:
    with (
        Publisher() as first,
        Publisher() as second,
        FakeEngine(EngineKind.VLLM, adapters={"sql": V1}) as one,
        FakeEngine(EngineKind.VLLM, adapters={"sql": V2}) as other,
        serving(fleet(instance("a", first, one), instance("b", second, other))) as run,
    ):
        wait_for_adapters(run, "a", {"sql": V1})
        wait_for_adapters(run, "b", {"sql": V2})
        for name, publisher, path in (("a", first, V1), ("b", second, V2)):
            publisher.wait_for_subscriber()
            wait_for_seq(run, name, publisher.publish(batch(events=[vllm_stored(ASKED, lora=("sql", path))])))
        assert matched(run, ASKED, lora="sql") == {"a": 64, "b": 64}
        stale = vllm_stored(prompt(2), lora=("sql", V1))  # b served v1 before
        wait_for_seq(run, "b", second.publish(batch(events=[stale])))
        assert matched(run, prompt(2), lora="sql") == {"a": 0, "b": 0}
        other.adapters["sql"] = V1
        wait_for_adapters(run, "b", {"sql": V1})
        assert matched(run, prompt(2), lora="sql") == {"a": 0, "b": 64}
        assert matched(run, ASKED, lora="sql") == {"a": 64, "b": 0}
        assert {run.worker(name)["trust"] for name in "ab"} == {"exact"}


def test_an_unknown_path_is_unverified_and_never_refused() -> None:
    with Publisher() as publisher, serving(fleet(instance("a", publisher))) as run:
        publisher.wait_for_subscriber()
        publish(run, publisher, vllm_stored(ASKED, lora=("sql", V1)))
        shown = run.worker("a")
        assert (shown["state"], shown["trust"], shown["hash"]["status"]) == ("live", "exact", "unverified")
        assert matched(run, ASKED, lora="sql") == {"a": 64}


def test_blocks_that_came_before_their_path_was_known_still_count() -> None:
    with (
        Publisher() as publisher,
        FakeEngine(EngineKind.VLLM, adapters={"sql": V1}) as engine,
    ):
        for path in ("/v1/models", "/version", "/metrics", "/kv_event_sources"):
            engine.spoil(HTML, path)
        with serving(fleet(instance("a", publisher, engine))) as run:
            publisher.wait_for_subscriber()
            publish(run, publisher, vllm_stored(ASKED, lora=("sql", V1)))
            assert matched(run, ASKED, lora="sql") == {"a": 64}
            engine.mend()
            wait_for_adapters(run, "a", {"sql": V1})
            wait_until(exactly(64, run, ASKED, lora="sql"), 5)  # asked for again: they belong elsewhere now
            assert run.worker("a")["trust"] == "exact"


def test_a_failed_look_at_the_models_forgets_no_adapter() -> None:
    with one_instance({"sql": V1}) as (run, _, engine):
        engine.spoil(HTML, "/v1/models")
        asked = engine.calls["/v1/models"]
        wait_until(lambda: engine.calls["/v1/models"] >= asked + 2, 5)
        assert run.http.post("/route", json={"model": "sql", "token_ids": ASKED}).status_code == 200


def test_only_instances_that_serve_the_adapter_are_eligible() -> None:
    with (
        FakeEngine(EngineKind.VLLM, adapters={"sql": V1}) as one,
        FakeEngine(EngineKind.VLLM) as other,
        serving(fleet(instance("a", server=one), instance("b", server=other))) as run,
    ):
        wait_for_adapters(run, "a", {"sql": V1})
        wait_until(lambda: run.instance("b")["version"] is not None, 5)
        answer = run.route(ASKED, model="sql")
        assert (answer["instance"], answer["reason"]) == ("a", "fallback")
        assert [one["why"] for one in answer["candidates"]] == [None, "does not serve the adapter"]


@pytest.mark.parametrize("dynamo", [False, True])
def test_sglang_adapters_need_the_dynamo_format(dynamo: bool) -> None:
    with one_instance({"sql": V1}, EngineKind.SGLANG, dynamo=dynamo) as (run, publisher, _):
        publish(run, publisher, {"type": "AllBlocksCleared"}, sglang_stored(ASKED))
        shown = run.worker("a")
        assert shown["state"] == "live"
        if dynamo:
            assert (shown["trust"], shown["advice"]) == ("exact", None)
        else:
            assert shown["trust"] == "partial"
            assert '"format": "dynamo"' in shown["advice"]
            assert run.route(ASKED, model="m")["trust"] == "partial"


def test_an_sglang_adapter_is_found_again_after_its_path_has_changed() -> None:
    def stored(path: str) -> dict[str, Any]:
        plain = sglang_stored(ASKED)
        hashes = [namespaced(one, lora_id("sql", path), None) for one in plain["block_hashes"]]
        return plain | {"block_hashes": hashes, "lora_name": "sql"}

    with one_instance({"sql": V1}, EngineKind.SGLANG, dynamo=True) as (run, publisher, engine):
        publish(run, publisher, stored(V1))
        assert matched(run, ASKED, lora="sql") == {"a": 64}
        engine.adapters["sql"] = V2
        engine.restart()
        wait_for_adapters(run, "a", {"sql": V2})
        publisher.restart()
        publisher.wait_for_subscriber()
        wait_until(exactly(0, run, ASKED, lora="sql"), 5, lambda: run.instance("a"))
        publisher.publish(batch(events=[stored(V2)]))  # number 0 again: the seq shown does not tell that it is applied
        wait_until(exactly(64, run, ASKED, lora="sql"), 5, lambda: run.instance("a"))


def test_an_sglang_recording_with_adapters_is_exact_in_the_dynamo_format() -> None:
    stream = sglang_stream("page1_dynamo")
    with one_instance({}, EngineKind.SGLANG, dynamo=True) as (run, publisher, _):
        asked = 0
        for row in rows_of(run, "a", publisher, stream, lambda row: "extra_key" in row.fields):
            assert matched(run, row.tokens, **row.fields)["a"] == row.expected["matched_tokens"]
            asked += 1
        assert asked > 20


def test_every_rank_of_an_sglang_engine_is_known_to_tell_namespaces_apart() -> None:
    with ExitStack() as stack:
        publishers = [stack.enter_context(one) for one in ranks(2, replay=False)]
        engine = stack.enter_context(FakeEngine(EngineKind.SGLANG, dp_size=2, dynamo=True, events=publishers[0].events))
        run = stack.enter_context(serving(fleet(instance("a", server=engine))))
        plain = sglang_stored(ASKED)
        secret = plain | {"block_hashes": [namespaced(one, "tenant", None) for one in plain["block_hashes"]]}
        for rank, publisher in enumerate(publishers):
            publisher.wait_for_subscriber()
            wait_for_seq(run, "a", publisher.publish(batch(events=[secret])), rank)
        for fields, expected in (({}, 0), ({"extra_key": "tenant"}, 64)):
            answer = run.route(ASKED, model="m", **fields)
            assert [one["matched_tokens"] for one in answer["candidates"]] == [expected, expected]
