"""Only engines that serve what is asked for, under the name that it is asked by, get requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from app.instance import NO_FACTS, Instance
from app.instance_settings import InstanceSettings
from app.serving_names import Asked, serves_other, split_name, why_not_served
from engine.facts import EngineFacts
from index.block_hash import HashIdentity
from index.worker import EngineKind
from tests.support.engine_events import CLEARED, prompt, sglang_stored, vllm_stored
from tests.support.fake_engine import HTML, FakeEngine, Reply
from tests.support.fleet import fleet, instance, matched, publish
from tests.support.publisher import Publisher
from tests.support.redis_server import RedisServer
from tests.support.service import Running, serving, wait_until

ASKED = prompt(1)
VLLM, SGLANG = EngineKind.VLLM, EngineKind.SGLANG
DENIED = Reply(json.dumps({"error": "Unauthorized"}), 401)


@contextmanager
def engines(*engines: FakeEngine, sections: dict[str, Any] | None = None, **models: str) -> Iterator[Running]:
    """The service with instances a, b, ... on these engines, for m or what `models` say; all are looked at."""
    with ExitStack() as stack:
        served = {name: stack.enter_context(engine) for name, engine in zip("abcd", engines, strict=False)}
        settings = [instance(name, server=one, model=models.get(name, "m")) for name, one in served.items()]
        with serving(fleet(*settings, **(sections or {}))) as run:
            for name in served:
                wait_until(lambda name=name: run.instance(name)["version"] is not None, 10)  # type: ignore[misc]
            yield run


def eligible(run: Running, **fields: Any) -> set[str] | int:
    """Who may be chosen for a request; the status where it is refused without candidates."""
    answer = run.http.post("/route", json={"model": "m", "token_ids": ASKED, "explain": True, "dry_run": True} | fields)
    if answer.status_code != 200:
        return answer.status_code
    return {one["instance"] for one in answer.json()["candidates"] if one["eligible"]}


def why(run: Running, name: str, **fields: Any) -> str | None:
    """Why an instance may not be chosen."""
    said: str | None = run.candidates(ASKED, **({"model": "m"} | fields))[name]["why"]
    return said


@pytest.mark.parametrize("kind", [VLLM, SGLANG])
def test_an_engine_that_serves_another_model_gets_nothing_and_its_blocks_do_not_count(kind: EngineKind) -> None:
    stored = vllm_stored if kind is VLLM else sglang_stored
    with Publisher() as publisher, FakeEngine(kind) as engine, FakeEngine(kind) as other:
        settings = fleet(instance("a", publisher, engine), instance("b", server=other))
        with serving(settings) as run:
            publish(run, "a", publisher, CLEARED, stored(ASKED))
            wait_until(lambda: eligible(run) == {"a", "b"}, 10)
            assert matched(run, ASKED)["a"] == 64
            engine.model = "other"
            wait_until(lambda: eligible(run) == {"b"}, 10)
            assert why(run, "a") == "serves other, not m"
            assert run.instance("a")["warning"].startswith("serves other, not m")
            publish(run, "a", publisher, stored(ASKED))  # of the other model
            assert matched(run, ASKED)["a"] == 0
            assert run.worker("a")["trust"] == "none"
            assert eligible(run, model="other") == 404
            engine.model = "m"
            wait_until(lambda: eligible(run) == {"a", "b"}, 10)
            wait_until(lambda: matched(run, ASKED)["a"] == 64, 10)
            assert run.instance("a")["warning"] is None or "serves" not in run.instance("a")["warning"]


def test_the_identity_of_a_model_is_not_taken_from_an_engine_that_serves_another() -> None:
    with (
        Publisher() as first,
        Publisher() as second,
        FakeEngine(VLLM, model="other") as one,
        FakeEngine(VLLM) as two,
        serving(fleet(instance("a", first, one), instance("b", second, two))) as run,
    ):
        wait_until(lambda: "serves" in (run.instance("a")["warning"] or ""), 10)
        publish(run, "a", first, vllm_stored(ASKED, HashIdentity("sha256", "42")))
        publish(run, "b", second, vllm_stored(ASKED))
        assert run.worker("b")["hash"]["status"] == "verified"
        assert run.worker("a")["hash"]["status"] == "unverified"


def test_stored_state_of_an_engine_that_serves_another_model_is_discarded(server: RedisServer) -> None:
    with Publisher() as publisher, FakeEngine(VLLM) as engine:
        settings = fleet(instance("a", publisher, engine), state=server.url)
        with serving(settings) as run:
            publish(run, "a", publisher, CLEARED, vllm_stored(ASKED))
            wait_until(lambda: bool(server.command("KEYS", "*:snap")), 10)
            engine.model = "other"
            wait_until(lambda: not server.command("KEYS", "*:snap"), 10)
            assert matched(run, ASKED)["a"] == 0


@pytest.mark.parametrize("spoilt", [HTML, DENIED, Reply('{"data": []}'), Reply("[]")])
def test_an_engine_that_lists_nothing_is_believed(spoilt: Reply) -> None:
    with FakeEngine(VLLM, model="other") as engine:
        engine.spoil(spoilt, "/v1/models")
        with serving(fleet(instance("a", server=engine))) as run:
            wait_until(lambda: run.instance("a")["version"] is not None, 10)
            assert eligible(run) == {"a"}


def test_an_alias_is_of_the_instances_that_list_it() -> None:
    with engines(FakeEngine(VLLM), FakeEngine(VLLM, aliases=("prod",))) as run:
        assert eligible(run) == {"a", "b"}
        assert eligible(run, model="prod") == {"b"}
        assert why(run, "a", model="prod") == "lists m, not prod"


def test_an_alias_of_two_models_means_the_instances_of_both() -> None:
    first, second = (FakeEngine(VLLM, model=name, aliases=("prod",)) for name in "mn")
    with engines(first, second, FakeEngine(VLLM, model="n"), b="n", c="n") as run:
        assert eligible(run, model="prod") == {"a", "b"}
        assert eligible(run) == {"a"}
        assert eligible(run, model="n") == {"b", "c"}


def test_an_alias_listed_under_another_base_captures_nothing() -> None:
    """a is configured for n and serves something else, whose alias is asked for."""
    other = FakeEngine(VLLM, model="other", aliases=("prod", "m"))
    with engines(other, FakeEngine(VLLM, aliases=("prod",)), a="n") as run:
        assert eligible(run, model="prod") == {"b"}
        assert eligible(run) == {"b"}
        assert eligible(run, model="n") == 503


def test_a_model_is_not_served_by_an_engine_to_which_it_is_an_alias_while_another_is_called_so() -> None:
    borrowed = FakeEngine(VLLM, model="other", root="other", aliases=("m",))
    with engines(FakeEngine(VLLM, root="m"), borrowed) as run:
        assert eligible(run) == {"a"}
        assert why(run, "b") == "serves other, under the name m too"
        run.http.delete("/instances/a").raise_for_status()
        assert eligible(run) == {"b"}  # nobody else says that it is called so


def test_an_instance_may_be_configured_by_the_root_of_what_it_lists() -> None:
    """vLLM answers 404 for the root itself; SGLang, which tells it elsewhere, takes any name."""
    sglang = FakeEngine(SGLANG, model="prod")
    told = {"model_path": "m", "served_model_name": "prod"}
    sglang.spoil(Reply(json.dumps(told)), "/model_info")
    with engines(FakeEngine(VLLM, model="prod", root="m"), sglang) as run:
        assert eligible(run, model="prod") == {"a", "b"}
        assert eligible(run) == {"b"}
        assert why(run, "a") == "lists prod, not m"


def test_sglang_may_tell_its_model_without_a_list() -> None:
    engine = FakeEngine(SGLANG)
    engine.spoil(HTML, "/v1/models")
    engine.spoil(Reply(json.dumps({"model_path": "/models/x", "served_model_name": "other"})), "/model_info")
    with engines(engine, FakeEngine(SGLANG)) as run:
        assert eligible(run) == {"b"}
        assert why(run, "a") == "serves other, not m"


def test_a_text_is_tokenised_under_a_name_that_the_engine_lists() -> None:
    engine = FakeEngine(VLLM, model="prod", root="m")
    with engines(engine, FakeEngine(VLLM, model="other")) as run:
        answer = run.http.post("/route", json={"model": "prod", "prompt": "hello"}).json()
        assert (answer["instance"], answer["prompt_tokens"]) == ("a", 6)
        assert {json.loads(body)["model"] for body in engine.bodies["/tokenize"]} == {"prod"}


# base:adapter


def test_a_colon_names_an_adapter_for_sglang_alone() -> None:
    sql = {"sql": "/l/sql"}
    with engines(FakeEngine(SGLANG, adapters=sql), FakeEngine(SGLANG), FakeEngine(VLLM, adapters=sql)) as run:
        for name in ("m:sql", " m : sql "):
            assert eligible(run, model=name) == {"a"}
            assert why(run, "b", model=name) == "does not serve the adapter"
            assert "vLLM" in (why(run, "c", model=name) or "")
        assert eligible(run, model="sql") == {"a", "c"}
        assert eligible(run, lora="sql") == {"a", "c"}
        assert eligible(run, lora_path="sql") == {"a"}
        assert why(run, "c", lora_path="sql") == "vLLM does not take lora_path"
        assert eligible(run, lora_path=["sql"]) == {"a"}
        assert eligible(run, model="m:") == {"a", "b"}
        assert eligible(run, model="m:other") == 404
        assert eligible(run, model="n:sql") == 404
        assert eligible(run, model=":sql") == 404


def test_what_is_held_of_an_adapter_is_found_by_all_its_names() -> None:
    with (
        Publisher() as publisher,
        FakeEngine(SGLANG, adapters={"sql": "/l/sql"}, dynamo=True) as engine,
        serving(fleet(instance("a", publisher, engine))) as run,
    ):
        wait_until(lambda: run.instance("a")["adapters"] != {}, 10)
        stored = sglang_stored(ASKED) | {"block_hashes": list(range(5, 69)), "lora_name": "sql"}
        publish(run, "a", publisher, CLEARED, stored)
        for fields in ({"model": "sql"}, {"model": "m:sql"}, {"lora": "sql"}, {"lora_path": "sql"}):
            assert matched(run, ASKED, **fields)["a"] == 64, fields
        assert matched(run, ASKED)["a"] == 0


def test_vllm_may_list_a_name_with_a_colon_for_an_adapter_or_a_model() -> None:
    sglang, vllm = FakeEngine(SGLANG, adapters={"sql": "/l/sql"}), FakeEngine(VLLM, adapters={"m:sql": "/l/sql"})
    with engines(sglang, vllm, FakeEngine(VLLM, model="m:v2"), c="m:v2") as run:
        assert eligible(run, model="m:sql") == {"a", "b"}
        assert eligible(run, model="m:v2") == {"c"}


def test_a_models_own_name_wins_over_the_adapter_that_it_would_name() -> None:
    with engines(FakeEngine(SGLANG, adapters={"sql": "/l/sql"}), FakeEngine(VLLM, model="m:sql"), b="m:sql") as run:
        assert eligible(run, model="m:sql") == {"b"}


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"model": "m:sql", "lora": "chat"}, "lora"),
        ({"model": "sql", "lora": "chat"}, "lora"),
        ({"model": "sql", "lora_path": "chat"}, "lora_path"),
        ({"model": "m", "lora": "sql", "lora_path": "chat"}, "lora_path"),
        ({"model": "m", "lora_path": ["sql", "chat"]}, "lora_path"),
        ({"model": "m", "lora_path": 7}, "lora_path"),
    ],
)
def test_two_adapters_for_one_prompt_are_refused(fields: dict[str, Any], wrong: str) -> None:
    with engines(FakeEngine(SGLANG, adapters={"sql": "/s", "chat": "/c"})) as run:
        answer = run.http.post("/route", json={"token_ids": ASKED} | fields)
        assert (answer.status_code, answer.json()["field"]) == (422, wrong)


def test_the_adapter_in_a_models_name_wins_over_lora_path_as_in_sglang() -> None:
    with engines(FakeEngine(SGLANG, adapters={"sql": "/s"}), FakeEngine(SGLANG, adapters={"chat": "/c"})) as run:
        assert eligible(run, model="m:sql", lora_path="chat") == {"a"}
        query = {"model": "m", "lora_path": "chat", "explain": "1"}
        answer = run.http.post(
            "/route", params=query, content=b"\1\0\0\0", headers={"content-type": "application/octet-stream"}
        )
        assert answer.json()["instance"] == "b"


# models without an instance


def test_a_model_that_is_known_and_has_no_instance_is_503() -> None:
    sections = {"models": {"m": {}, "expected": {"hash": {"algorithm": "sha256_cbor"}}}}
    aliased = FakeEngine(SGLANG, aliases=("prod",), adapters={"sql": "/s"})
    with engines(aliased, FakeEngine(VLLM, model="n"), sections=sections, b="n") as run:
        run.http.delete("/instances/a").raise_for_status()
        for path in ("/route", "/index/match"):
            for name in ("m", "expected", "prod", "sql", "m:sql", "expected:any"):
                answer = run.http.post(path, json={"model": name, "token_ids": ASKED})
                assert (answer.status_code, answer.headers.get("retry-after")) == (503, "5"), name
                assert "no instance now" in answer.json()["detail"]
                assert answer.json()["models"] == ["n"]
            assert run.http.post(path, json={"model": "nobody", "token_ids": ASKED}).status_code == 404
        run.http.delete("/instances/b").raise_for_status()
        gone = run.http.post("/route", json={"model": "n", "token_ids": ASKED})
        assert gone.status_code == 404, "the settings do not name it"
        back = instance("a", server=aliased)
        run.http.post("/instances", json=back).raise_for_status()
        wait_until(lambda: eligible(run, model="prod") == {"a"}, 10)


# the rule by itself


def known(kind: str, facts: EngineFacts, model: str = "m") -> Instance:
    settings = InstanceSettings.model_validate({"id": "a", "engine": kind, "model": model, "url": "http://a"})
    return Instance(settings, facts=facts)


def test_a_name_is_split_at_its_first_colon() -> None:
    assert split_name("m") is None
    assert split_name("m:a:b") == ("m", "a:b")
    assert split_name(" m : ") == ("m", None)


def test_long_lists_and_names_are_cut() -> None:
    facts = NO_FACTS._replace(models=tuple(f"{number}{'x' * 300}" for number in range(50)))
    said = serves_other("m", facts)
    assert said is not None
    assert len(said) < 400
    assert "and 47 more" in said


def test_an_engine_that_lists_nothing_is_believed_for_its_own_name_alone() -> None:
    for kind in ("vllm", "sglang"):
        silent = known(kind, NO_FACTS)
        assert why_not_served(silent, Asked("m", "m", None), None, [silent]) is None
        assert why_not_served(silent, Asked("prod", "prod", None), None, [silent]) == "does not list prod"
        assert why_not_served(silent, Asked("m", "m", None), "sql", [silent]) is None
