"""`POST /route` over HTTP: forms of body and answer, candidates, what is remembered of a request."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from index.worker import EngineKind
from tests.support.engine_events import prompt, vllm_stored
from tests.support.fake_engine import FakeEngine
from tests.support.fleet import fleet, instance, publish
from tests.support.publisher import Publisher
from tests.support.service import Running, serving, u32, wait_until

ASKED = prompt(1)
TEXT = "What is a KV cache? " * 8
OCTETS = {"content-type": "application/octet-stream"}


@contextmanager
def two_instances(**sections: Any) -> Iterator[tuple[Running, Publisher]]:
    """The service with instance a, its publisher, and instance b without events; both answer over HTTP."""
    with (
        Publisher() as publisher,
        FakeEngine(EngineKind.VLLM) as engine,
        serving(fleet(instance("a", publisher, engine), instance("b", server=engine), **sections)) as run,
    ):
        wait_until(lambda: all(run.instance(name)["version"] for name in "ab"), 5)
        yield run, publisher


def ask(run: Running, **fields: Any) -> httpx.Response:
    return run.http.post("/route", json={"model": "m", "token_ids": ASKED, **fields})


def why(answer: dict[str, Any]) -> dict[str, str | None]:
    return {one["instance"]: one["why"] for one in answer["candidates"]}


def series(run: Running, *names: str) -> dict[str, float]:
    """All series of the service's own counters whose name begins so."""
    lines = [line for line in run.http.get("/metrics").text.splitlines() if line.startswith(names)]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


# Forms


def test_json_and_octets_get_the_same_answer() -> None:
    with two_instances() as (run, publisher):
        publish(run, "a", publisher, vllm_stored(ASKED))
        fields = {"explain": True, "dry_run": True, "exclude": ["c"], "selector": {}, "max_tokens": 5}
        as_json = ask(run, **fields)
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in fields.items()}
        octets = run.http.post("/route", params={"model": "m", **texts}, content=u32(ASKED), headers=OCTETS)
        assert as_json.status_code == octets.status_code == 200
        one, other = as_json.json(), octets.json()
        assert one.pop("request_id") != other.pop("request_id")
        assert one == other
        assert (one["instance"], one["matched_tokens"], one["reusable_tokens"], one["reason"]) == (
            "a",
            64,
            48,
            "prefix",
        )


def test_the_answer_is_in_headers_too() -> None:
    with Publisher() as publisher, serving(fleet(instance("a", publisher), instance("b"))) as run:
        publish(run, "a", publisher, vllm_stored(ASKED))
        answer = ask(run)
        body = answer.json()
        assert {key: value for key, value in answer.headers.items() if key.startswith("x-kvroute-")} == {
            "x-kvroute-instance": "a",
            "x-kvroute-url": body["url"],
            "x-kvroute-dp-rank": "0",
            "x-kvroute-matched-tokens": "64",
            "x-kvroute-request-id": body["request_id"],
        }
        assert set(body) == {
            "request_id", "model", "instance", "dp_rank", "url", "headers", "prompt_tokens", "matched_tokens",
            "reusable_tokens", "reason", "trust",
        }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"model": "m"}, 422),
        ({"model": "m", "token_ids": []}, 422),
        ({"model": "m", "token_ids": [True]}, 422),
        ({"model": "m", "token_ids": [1.0]}, 422),
        ({"model": "m", "token_ids": ["1"]}, 422),
        ({"model": "m", "token_ids": [-1]}, 422),
        ({"model": "m", "token_ids": [1 << 32]}, 422),
        ({"model": "m", "prompt": ""}, 422),
        ({"model": "m", "prompt": ["a"]}, 422),
        ({"model": "m", "token_ids": [1], "prompt": "a"}, 422),
        ({"model": "other", "token_ids": [1]}, 404),
        ({"model": "m", "token_ids": [1], "candidates": []}, 503),
    ],
)
def test_a_refusal_is_a_problem_document_and_counted(body: dict[str, Any], status: int) -> None:
    with serving(fleet(instance("a"))) as run:
        answer = run.http.post("/route", json=body)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        assert {"type", "title", "status", "detail"} <= set(answer.json())
        assert series(run, "kvroute_route_errors_total") == {f'kvroute_route_errors_total{{status="{status}"}}': 1.0}
        assert series(run, "kvroute_route_requests_total") == {}


# Candidates


def test_explain_says_why_each_instance_may_not_be_chosen() -> None:
    with Publisher() as first, Publisher() as second:
        names = ["chosen", "drained", "excluded", "elsewhere", "outside"]
        settings = [instance(name, labels={"zone": "a"}) for name in names] + [
            instance("refused", first, labels={"zone": "a"}),
            instance("silent", labels={"zone": "a"}),
        ]
        settings[3] |= {"labels": {"zone": "b"}}
        settings[0] |= {"events": second.events, "replay": second.replay}
        with serving(fleet(*settings, hash={"algorithm": "xxhash", "seed": "1"})) as run:
            publish(run, "refused", first, vllm_stored(ASKED))
            second.wait_for_subscriber()
            run.wait_for_state("chosen", "live")
            wait_until(lambda: run.instance("silent")["reachable"] is False, 5)
            run.http.post("/instances/drained/drain")
            asked = [name for name in [*names, "refused", "silent"] if name != "outside"]
            answer = run.route(
                ASKED, model="m", candidates=[*asked, "nobody"], exclude=["excluded"], selector={"zone": "a"}
            )
            reasons = why(answer)
            assert set(reasons) == {*names, "refused", "silent"}
            assert reasons["chosen"] is None
            assert reasons["drained"] == "draining"
            assert reasons["excluded"] == "excluded by the request"
            assert "labels" in str(reasons["elsewhere"])
            assert "candidates" in str(reasons["outside"])
            assert "refused" in str(reasons["refused"])
            assert "not reached" in str(reasons["silent"])
            assert answer["unknown_candidates"] == ["nobody"]
            eligible = {one["instance"] for one in answer["candidates"] if one["eligible"]}
            assert eligible == {"chosen", "refused"}
            assert {one["instance"] for one in answer["candidates"] if one["score"] is not None} == eligible


def test_candidates_are_named_by_id_or_url() -> None:
    with FakeEngine(EngineKind.VLLM) as engine, serving(fleet(instance("a"), instance("b", server=engine))) as run:
        for name in ("b", engine.url, engine.url + "/", engine.url.removeprefix("http://")):
            answer = run.route(ASKED, model="m", candidates=[name, "http://nobody:1"])
            assert (answer["instance"], answer["reason"]) == ("b", "fallback")
            assert answer["unknown_candidates"] == ["http://nobody:1"]
        only = ask(run, candidates=["http://nobody:1"])
        assert only.status_code == 503
        assert [one["instance"] for one in only.json()["instances"]] == ["a", "b"]
        assert only.json()["unknown_candidates"] == ["http://nobody:1"]
        assert "these candidates name no instance of the model: http://nobody:1" in only.json()["detail"]
        many = ask(run, candidates=[f"nobody-{number}\n" + "x" * 1000 for number in range(1000)])
        assert (many.status_code, len(many.json()["unknown_candidates"])) == (503, 20)
        assert len(many.content) < 6000
        assert run.metric("kvroute_unknown_candidates_total") == 4


def test_many_unknown_candidates_are_named_quickly() -> None:
    names = [f"http://engine-{number}.pods.cluster.local:8000/" for number in range(4_000)]
    with serving(fleet(*(instance(f"e{number}") for number in range(40)))) as run:
        began = time.perf_counter()
        answer = ask(run, candidates=[*names, "e7"], explain=True)
        assert (answer.json()["instance"], len(answer.json()["unknown_candidates"])) == ("e7", 4_000)
        assert time.perf_counter() - began < 10.0


def test_when_nobody_is_eligible_it_says_why_for_each() -> None:
    with serving(fleet(instance("a"), instance("b"))) as run:
        run.http.post("/instances/a/drain")
        answer = ask(run, exclude=["b"])
        assert answer.status_code == 503
        assert answer.json()["instances"] == [
            {"instance": "a", "dp_rank": 0, "why": "draining"},
            {"instance": "b", "dp_rank": 0, "why": "excluded by the request"},
        ]
        assert answer.json()["unknown_candidates"] == []
        assert int(answer.headers["retry-after"]) > 0


# Traces


def test_a_dry_run_leaves_no_trace() -> None:
    names = (
        "kvroute_route_requests_total", "kvroute_prompt_tokens_total", "kvroute_matched_tokens_total",
        "kvroute_reusable_tokens_total", "kvroute_route_seconds_count", "kvroute_unknown_candidates_total",
    )  # fmt: skip
    with two_instances() as (run, publisher):
        publish(run, "a", publisher, vllm_stored(ASKED))
        before = series(run, *names)
        for number in range(10):
            answer = ask(
                run, dry_run=True, token_ids=prompt(number), session_id="s", candidates=["a", "zz"], explain=True
            )
            load = answer.json()["candidates"][0]["load"]
            assert load["inflight_prefill_tokens"] == 0
        assert series(run, *names) == before
        assert run.http.post(f"/requests/{answer.json()['request_id']}/first_token").status_code == 404
        run.candidates(ASKED, model="m")
        assert series(run, *names) == before
        for _ in range(10):  # neither a guess nor a session was remembered
            ask(run, dry_run=True, token_ids=prompt(77), session_id="s", candidates=["a"])
        answers = {ask(run, dry_run=True, token_ids=prompt(77), session_id="s").json()["reason"] for _ in range(5)}
        assert answers == {"cold"}


def test_a_request_is_counted_until_it_is_reported_as_finished() -> None:
    with Publisher() as publisher, serving(fleet(instance("a", publisher))) as run:
        publish(run, "a", publisher, vllm_stored(ASKED))

        def inflight() -> int:
            number: int = run.candidates(ASKED, model="m")["a"]["load"]["inflight_prefill_tokens"]
            return number

        answer = run.route([*ASKED, *range(100)], model="m")
        assert inflight() == 100
        path = f"/requests/{answer['request_id']}"
        assert run.http.post(path + "/first_token").status_code == 204
        assert inflight() == 0
        assert run.http.post(path + "/first_token").status_code == 204
        report = {"cached_tokens": 48, "prompt_tokens": 164, "output_tokens": 5}
        assert run.http.post(path + "/finished", json=report).status_code == 204
        assert run.http.post(path + "/finished", json=report).status_code == 204
        labels = '{model="m"}'
        assert series(run, "kvroute_delivered_") == {
            f"kvroute_delivered_tokens_total{labels}": 48.0,
            f"kvroute_delivered_prompt_tokens_total{labels}": 164.0,
        }
        assert series(run, "kvroute_prompt_tokens", "kvroute_matched", "kvroute_reusable") == {
            f"kvroute_prompt_tokens_total{labels}": 164.0,
            f"kvroute_matched_tokens_total{labels}": 64.0,
            f"kvroute_reusable_tokens_total{labels}": 64.0,
        }
        assert series(run, "kvroute_undelivered_tokens_total") == {
            'kvroute_undelivered_tokens_total{instance="a"}': 16.0
        }


def test_reports_on_unknown_requests_are_404() -> None:
    with serving(fleet(instance("a"))) as run:
        for path in ("/requests/nope/first_token", "/requests/nope/finished", "/requests/%00/finished"):
            assert run.http.post(path).status_code == 404
        known = ask(run).json()["request_id"]
        assert run.http.post(f"/requests/{known}/finished", json={"cached_tokens": -1}).status_code == 422
        assert run.http.post(f"/requests/{known}/finished", content=b"{").status_code == 400
        assert run.http.post(f"/requests/{known}/finished").status_code == 204


def test_a_report_may_say_how_the_request_failed() -> None:
    with serving(fleet(instance("a"))) as run:
        for error in (None, False, True, {"kind": "connect"}, {"kind": "status", "status": 503, "detail": "core dead"}):
            path = f"/requests/{ask(run).json()['request_id']}/finished"
            assert run.http.post(path, json={"error": error}).status_code == 204
        refused = run.http.post(path, json={"error": {"kind": "gone"}})
        assert (refused.status_code, refused.json()["field"]) == (422, "error.kind")
        assert "gone is not one of connect, timeout, status, aborted" in refused.json()["detail"]


def test_equal_workers_get_one_request_after_the_other() -> None:
    with serving(fleet(*(instance(name) for name in "abcd"))) as run:
        for turn in range(5):
            assert {run.route(prompt(4 * turn + one), model="m")["instance"] for one in range(4)} == set("abcd")


def test_a_session_stays_where_it_was_while_nobody_holds_a_prefix() -> None:
    with two_instances() as (run, publisher):
        publish(run, "a", publisher, vllm_stored(prompt(50)))
        home = run.route(prompt(2), model="m", session_id="s")["instance"]
        again = [run.route(prompt(number), model="m", session_id="s") for number in range(3, 9)]
        assert {(one["instance"], one["reason"]) for one in again} == {(home, "affinity")}
