"""The fleet over HTTP: instances come and go while the service runs, and nothing of those that went stays."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from index.block_hash import HashIdentity
from index.worker import EngineKind
from tests.support.engine_events import prompt, vllm_removed, vllm_stored
from tests.support.fake_engine import FakeEngine
from tests.support.fleet import fleet, instance, matched, publish, two_instances, wait_for_seq
from tests.support.publisher import Publisher, batch
from tests.support.service import Running, serving, wait_until

ASKED = prompt(1)
ODD_IDS = [
    "org/vllm-0",
    "a//b",
    "/",
    "with space",
    " ",
    "50%",
    "%2F",
    "größe-東京-🙂",
    "?query=1&b",
    "#part",
    "a/drain",
    "drain",
    "...",
    "/..",
    "a/../b",
    'q"uote\\',
    "+",
    "x" * 128,
]


def path_of(name: str) -> str:
    """Dots too, or a client takes `..` for the parent directory."""
    return "/instances/" + quote(name, safe="").replace(".", "%2E")


def ids(run: Running) -> list[str]:
    return [one["id"] for one in run.http.get("/instances").json()["instances"]]


def problem(answer: httpx.Response) -> tuple[int, str | None]:
    """The status of a problem document and the field it names."""
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == answer.status_code
    return answer.status_code, answer.json().get("field")


# Adding


def test_an_instance_is_added_once() -> None:
    with serving(fleet()) as run:
        body = instance("a", labels={"zone": "x"})
        created = run.http.post("/instances", json=body)
        assert created.status_code == 201
        assert created.json() | {"id": "a", "labels": {"zone": "x"}, "state": "connecting"} == created.json()
        again = run.http.post("/instances", json=body)
        assert (again.status_code, again.json()["id"]) == (200, "a")
        assert problem(run.http.post("/instances", json=body | {"weight": 2.0})) == (409, "id")
        assert run.http.get("/instances/a").json()["weight"] == 1.0
        assert ids(run) == ["a"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"engine": "other"}, "engine"),
        ({"id": ""}, "id"),
        ({"id": "a\nb"}, "id"),
        ({"id": "x" * 129}, "id"),
        ({"id": "."}, "id"),
        ({"id": ".."}, "id"),
        ({"url": "nowhere"}, "url"),
        ({"events": "udp://h:1"}, "events"),
        ({"dp_size": 0}, "dp_size"),
        ({"weight": -1}, "weight"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_wrong_instance_is_422_with_its_field(change: dict[str, Any], field: str) -> None:
    with serving(fleet()) as run:
        assert problem(run.http.post("/instances", json=instance("a") | change)) == (422, field)
        assert ids(run) == []


def test_an_instance_added_while_running_is_followed_at_once() -> None:
    with Publisher() as publisher, serving(fleet(instance("a"))) as run:
        publisher.publish(batch(events=[vllm_stored(prompt(2))]))
        assert run.http.post("/instances", json=instance("b", publisher)).status_code == 201
        wait_for_seq(run, "b", 0)
        publish(run, "b", publisher, vllm_stored(ASKED))
        assert matched(run, ASKED) == {"a": 0, "b": 64}
        assert matched(run, prompt(2))["b"] == 64
        assert run.route(ASKED, model="m")["instance"] == "b"
        assert run.worker("b")["trust"] == "exact"


def test_endpoints_that_nobody_can_dial_cost_only_their_instance() -> None:
    unusable = [
        instance("v6", events="tcp://a:b:5557"),
        instance("name", events="tcp://no-such-host.invalid:5557"),
        instance("ports", events="tcp://127.0.0.1:65535"),
    ]
    with FakeEngine(EngineKind.VLLM, dp_size=3, events="tcp://*:5557") as engine, serving(fleet()) as run:
        for body in unusable:
            answer = run.http.post("/instances", json=body | {"url": engine.url})
            assert answer.status_code in (201, 422), answer.text
        wait_until(lambda: len(run.instance("ports")["workers"]) == 3, 5)
        assert "65535" in run.instance("ports")["workers"][1]["advice"]
        if "v6" in ids(run):
            assert "a:b" in run.worker("v6")["advice"]
        assert run.http.get("/healthz").status_code == 200
        assert {one["state"] for one in run.http.get("/instances").json()["instances"]} <= {"connecting", "live"}


# Removing


def test_a_removed_instance_leaves_nothing_and_late_events_do_not_bring_it_back() -> None:
    with Publisher() as publisher, serving(fleet(instance("a", publisher))) as run:
        publish(run, "a", publisher, vllm_stored(ASKED), vllm_stored(prompt(2)), vllm_removed(vllm_stored(prompt(2))))
        run.route(ASKED, model="m")
        assert run.http.get("/index/stats").json()["blocks"] == 4
        assert 'instance="a"' in run.http.get("/metrics").text
        assert run.http.delete("/instances/a").status_code == 204
        gone = {"blocks": 0, "holders": 0, "bytes": 0, "pools": []}
        assert run.http.get("/index/stats").json() == gone
        for _ in range(20):
            publisher.publish(batch(events=[vllm_stored(ASKED)]))
        assert problem(run.http.post("/route", json={"model": "m", "token_ids": ASKED}))[0] == 404
        assert problem(run.http.get("/instances/a")) == (404, "id")
        assert problem(run.http.delete("/instances/a")) == (404, "id")
        assert problem(run.http.post("/instances/a/drain")) == (404, "id")
        assert run.http.get("/index/stats").json() == gone
        text = run.http.get("/metrics").text
        assert 'instance="a"' not in text
        assert 'model="m"' not in text


def test_removing_one_keeps_what_others_hold() -> None:
    with two_instances() as (run, first, second):
        publish(run, "a", first, vllm_stored(ASKED))
        publish(run, "b", second, vllm_stored(ASKED))
        both = run.http.get("/index/stats").json()
        assert (both["blocks"], both["holders"]) == (4, 8)
        run.http.delete("/instances/a").raise_for_status()
        assert matched(run, ASKED) == {"b": 64}
        one = run.http.get("/index/stats").json()
        assert (one["blocks"], one["holders"]) == (4, 4)
        run.http.delete("/instances/b").raise_for_status()
        assert run.http.get("/index/stats").json()["bytes"] == 0


def test_an_instance_comes_back_under_its_name_as_a_new_one() -> None:
    with Publisher() as former, Publisher() as publisher, serving(fleet(instance("a", former))) as run:
        publish(run, "a", former, vllm_stored(ASKED), vllm_stored(prompt(2)))
        run.http.delete("/instances/a").raise_for_status()
        assert run.http.post("/instances", json=instance("a", publisher)).status_code == 201
        publish(run, "a", publisher, vllm_stored(ASKED, HashIdentity("xxhash", "0")))
        former.publish(batch(events=[vllm_stored(prompt(3))]))
        assert [matched(run, prompt(number))["a"] for number in (1, 2, 3)] == [64, 0, 0]
        assert run.worker("a")["hash"]["status"] == "verified"
        assert run.worker("a")["resets"] == {}


def test_adding_and_removing_one_id_at_once_ends_in_one_of_both() -> None:
    with Publisher() as publisher, serving(fleet(instance("b"))) as run, ThreadPoolExecutor(8) as pool:
        publisher.publish_all(batch(events=[vllm_stored(prompt(number))]) for number in range(200))
        body = instance("a", publisher)

        def change(number: int) -> int:
            with httpx.Client(base_url=run.url, timeout=20, trust_env=False) as http:
                return (http.post("/instances", json=body) if number % 2 else http.delete("/instances/a")).status_code

        statuses = set(pool.map(change, range(48)))
        assert {201, 204} <= statuses <= {200, 201, 204, 404}
        assert run.http.get("/healthz").status_code == 200
        run.http.delete("/instances/a")
        assert run.http.get("/index/stats").json()["bytes"] == 0
        assert run.http.post("/instances", json=body).status_code == 201
        wait_for_seq(run, "a", 199)
        assert matched(run, ASKED)["a"] == 64


# Names


def test_any_text_can_be_an_id() -> None:
    with serving(fleet()) as run:
        for name in ODD_IDS:
            assert run.http.post("/instances", json=instance(name)).status_code == 201, name
        assert ids(run) == ODD_IDS
        for name in ODD_IDS:
            assert run.http.get(path_of(name)).json()["id"] == name
            assert run.http.post(path_of(name) + "/drain").status_code == 204, name
            assert [one for one in ODD_IDS if run.http.get(path_of(one)).json()["draining"]] == [name]
            assert run.http.post(path_of(name) + "/undrain").status_code == 204, name
            answer = run.http.post("/route", json={"model": "m", "token_ids": [1], "candidates": [name]})
            assert answer.json()["instance"] == name
            assert answer.headers["x-kvroute-instance"].isascii()
        assert run.http.get("/metrics").status_code == 200
        for name in ODD_IDS:
            assert run.http.delete(path_of(name)).status_code == 204, name
        assert ids(run) == []


def test_a_draining_instance_keeps_its_index_and_gets_nothing_new() -> None:
    with Publisher() as publisher, serving(fleet(instance("a", publisher), instance("b"))) as run:
        publish(run, "a", publisher, vllm_stored(ASKED))
        assert run.http.post("/instances/a/drain").status_code == 204
        answer = run.route(ASKED, model="m")
        assert answer["instance"] == "b"
        assert (
            answer["candidates"][0] | {"instance": "a", "eligible": False, "why": "draining"} == answer["candidates"][0]
        )
        assert run.instance("a")["draining"] is True
        publish(run, "a", publisher, vllm_stored(prompt(2)))
        assert matched(run, prompt(2))["a"] == 64
        refused = run.http.post("/route", json={"model": "m", "token_ids": ASKED, "candidates": ["a"]})
        assert problem(refused)[0] == 503
        assert run.http.post("/instances/a/undrain").status_code == 204
        assert run.route(ASKED, model="m")["instance"] == "a"


def test_a_token_guards_writes_and_routing() -> None:
    right, wrong = {"authorization": "Bearer s3cret"}, {"authorization": "Bearer other"}
    with serving(fleet(instance("a"), auth={"token": "s3cret"})) as run:
        guarded = [
            ("POST", "/instances", instance("b")),
            ("POST", "/instances/a/drain", None),
            ("POST", "/instances/a/undrain", None),
            ("POST", "/route", {"model": "m", "token_ids": [1]}),
            ("POST", "/index/match", {"model": "m", "token_ids": [1]}),
            ("POST", "/requests/x/finished", {}),
            ("DELETE", "/instances/a", None),
        ]
        for method, path, body in guarded:
            for headers in ({}, wrong):
                answer = run.http.request(method, path, json=body, headers=headers)
                assert (answer.status_code, "www-authenticate" in answer.headers) == (401, True), path
        assert ids(run) == ["a"]
        assert run.instance("a")["draining"] is False
        for path in ("/instances", "/healthz", "/readyz", "/metrics"):
            assert run.http.get(path).status_code in (200, 503)
        statuses = [
            run.http.request(method, path, json=body, headers=right).status_code for method, path, body in guarded
        ]
        assert statuses == [201, 204, 204, 200, 200, 404, 204]
        assert "s3cret" not in run.http.get("/metrics").text
