"""`POST /route` over HTTP, from the body to the engines it asks: forms, candidates, traces, text, load."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from index.worker import EngineKind
from tests.support.engine_events import prompt, sglang_stored, vllm_stored
from tests.support.fake_engine import HTML, FakeEngine, RankLoad, Reply
from tests.support.fleet import fleet, instance, matched, wait_for_seq
from tests.support.publisher import Publisher, batch
from tests.support.service import Running, serving, u32, wait_until

ASKED = prompt(1)
TEXT = "What is a KV cache? " * 8
OCTETS = {"content-type": "application/octet-stream"}


def publish(run: Running, name: str, publisher: Publisher, *events: Any) -> None:
    publisher.wait_for_subscriber()
    wait_for_seq(run, name, publisher.publish(batch(events=events)))


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
        assert run.metric("kvroute_unknown_candidates_total") == 4


def test_many_unknown_candidates_are_named_quickly() -> None:
    names = [f"http://engine-{number}.pods.cluster.local:8000/" for number in range(4_000)]
    with serving(fleet(*(instance(f"e{number}") for number in range(40)))) as run:
        began = time.perf_counter()
        answer = ask(run, candidates=[*names, "e7"], explain=True)
        assert (answer.json()["instance"], len(answer.json()["unknown_candidates"])) == ("e7", 4_000)
        assert time.perf_counter() - began < 1.0


def test_when_nobody_is_eligible_it_says_why_for_each() -> None:
    with serving(fleet(instance("a"), instance("b"))) as run:
        run.http.post("/instances/a/drain")
        answer = ask(run, exclude=["b"])
        assert answer.status_code == 503
        assert answer.json()["instances"] == [
            {"instance": "a", "dp_rank": 0, "why": "draining"},
            {"instance": "b", "dp_rank": 0, "why": "excluded by the request"},
        ]
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


# Text


@pytest.mark.parametrize("kind", list(EngineKind))
def test_text_is_tokenised_by_an_engine_of_the_model(kind: EngineKind) -> None:
    chat = [{"role": "user", "content": TEXT}]
    store = vllm_stored if kind is EngineKind.VLLM else sglang_stored
    with (
        Publisher() as publisher,
        FakeEngine(kind) as engine,
        serving(fleet(instance("a", publisher, engine), instance("b", server=engine))) as run,
    ):
        publish(run, "a", publisher, store(engine.tokens(TEXT)), store(engine.chat_tokens(chat)))
        wait_until(lambda: all(run.instance(name)["version"] for name in "ab"), 5)
        for tokens, fields in ((engine.tokens(TEXT), {"prompt": TEXT}), (engine.chat_tokens(chat), {"messages": chat})):
            answer = run.http.post("/route", json={"model": "m", **fields}).json()
            assert (answer["instance"], answer["reason"]) == ("a", "prefix")
            assert answer["prompt_tokens"] == len(tokens)
            assert answer["matched_tokens"] >= len(tokens) // 16 * 16
            found = run.http.post("/index/match", json={"model": "m", **fields}).json()
            assert found["prompt_tokens"] == len(tokens)
            assert found["candidates"][0]["matched_tokens"] == answer["matched_tokens"]


def test_a_list_of_ids_as_prompt_is_not_tokenised() -> None:
    with FakeEngine(EngineKind.VLLM) as engine, serving(fleet(instance("a", server=engine))) as run:
        answer = run.http.post("/route", json={"model": "m", "prompt": ASKED}).json()
        assert answer["prompt_tokens"] == 64
        assert engine.calls["/tokenize"] == 0


def test_another_instance_is_asked_when_one_cannot_tokenise() -> None:
    with FakeEngine(EngineKind.VLLM) as broken, FakeEngine(EngineKind.VLLM) as engine:
        broken.spoil(HTML, "/tokenize")
        with serving(fleet(instance("a", server=broken), instance("b", server=engine))) as run:
            wait_until(lambda: all(run.instance(name)["version"] for name in "ab"), 5)
            for _ in range(8):
                answer = run.http.post("/route", json={"model": "m", "prompt": TEXT, "strict": True})
                assert answer.json()["prompt_tokens"] == len(engine.tokens(TEXT))
            assert engine.calls["/tokenize"] == 8
            assert run.metric('kvroute_tokenise_failures_total{kind="engine",model="m"}') == 0


def test_text_that_no_engine_tokenises_is_routed_by_load_or_refused_when_strict() -> None:
    slow = Reply('{"tokens": [1]}', delay_s=5)
    refusing = Reply('{"error": {"message": "chat template failed"}}', 400)
    failures = [(HTML, "engine", 504), (slow, "timeout", 504), (refusing, "template", 422)]
    limits = {"route_timeout_s": 0.4, "tokenise_timeout_s": 0.2}
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    with FakeEngine(EngineKind.VLLM) as engine, serving(fleet(instance("a", server=engine), limits=limits)) as run:
        for reply, kind, status in failures:
            engine.spoil(reply, "/tokenize")
            answer = run.http.post("/route", json=chat)
            body = answer.json()
            assert (answer.status_code, body["reason"], body["prompt_tokens"]) == (200, "fallback", None)
            assert (body["instance"], body["matched_tokens"]) == ("a", 0)
            assert "could not be tokenised" in body["detail"]
            assert run.metric(f'kvroute_tokenise_failures_total{{kind="{kind}",model="m"}}') == 1
            strict = run.http.post("/route", json=chat | {"strict": True})
            assert (strict.status_code, strict.headers["content-type"]) == (status, "application/problem+json")
            assert run.http.post("/index/match", json=chat).status_code == status
        assert series(run, "kvroute_prompt_tokens_total") == {}
        finished = f"/requests/{body['request_id']}/finished"
        assert run.http.post(finished, json={"cached_tokens": 7}).status_code == 204
        assert series(run, "kvroute_delivered_tokens_total") == {}  # of how many is not known


def test_a_hung_engine_does_not_delay_requests_with_token_ids() -> None:
    with (
        FakeEngine(EngineKind.VLLM) as engine,
        Publisher() as publisher,
        serving(fleet(instance("a", publisher, engine), instance("b"))) as run,
    ):
        publish(run, "a", publisher, vllm_stored(ASKED))
        wait_until(lambda: run.instance("a")["version"] is not None, 5)
        usual = _slowest(run)
        engine.spoil(Reply("{}", delay_s=1.5), "/tokenize", "/metrics")
        with ThreadPoolExecutor(8) as pool:
            texts = [pool.submit(httpx.post, run.url + "/route", json={"model": "m", "prompt": "x"}, timeout=20)
                     for _ in range(8)]  # fmt: skip
            time.sleep(0.2)
            assert _slowest(run) < max(0.5, 10 * usual)
            assert not all(text.done() for text in texts)
            engine.mend()
            assert {text.result().status_code for text in texts} == {200}


def _slowest(run: Running) -> float:
    times = []
    for _ in range(50):
        began = time.perf_counter()
        assert ask(run).json()["instance"] == "a"
        times.append(time.perf_counter() - began)
    return max(times)


def test_a_request_that_waits_for_an_engine_does_not_outlive_the_fleets_changes() -> None:
    with FakeEngine(EngineKind.VLLM) as engine, serving(fleet(instance("a", server=engine), instance("b"))) as run:
        wait_until(lambda: run.instance("a")["version"] is not None, 5)
        engine.spoil(Reply(json.dumps({"tokens": ASKED}), delay_s=0.5), "/tokenize")
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(httpx.post, run.url + "/route", json={"model": "m", "prompt": "x"}, timeout=20)
            wait_until(lambda: engine.calls["/tokenize"] > 0, 5)
            run.http.delete("/instances/a").raise_for_status()
            assert waiting.result().json()["instance"] == "b"
            waiting = pool.submit(httpx.post, run.url + "/route", json={"model": "m", "prompt": "x"}, timeout=20)
            run.http.delete("/instances/b").raise_for_status()
            assert waiting.result().status_code in (200, 404)
        assert 'model="m"' not in run.http.get("/metrics").text


def test_a_stopping_service_answers_what_it_has_begun() -> None:
    answers: list[httpx.Response] = []
    with (
        FakeEngine(EngineKind.VLLM) as engine,
        serving(fleet(instance("a", server=engine))) as run,
    ):
        wait_until(lambda: run.instance("a")["version"] is not None, 5)
        engine.spoil(Reply(json.dumps({"tokens": ASKED}), delay_s=0.5), "/tokenize")
        url = run.url + "/route"
        asking = threading.Thread(
            target=lambda: answers.append(httpx.post(url, json={"model": "m", "prompt": "x"}, timeout=20))
        )
        asking.start()
        wait_until(lambda: engine.calls["/tokenize"] > 0, 5)
        asking.join(10)
    assert [answer.status_code for answer in answers] == [200]


# Load


def test_load_beats_a_prefix_only_when_it_is_much_and_known() -> None:
    with (
        Publisher() as publisher,
        FakeEngine(EngineKind.VLLM) as busy,
        FakeEngine(EngineKind.VLLM) as idle,
        serving(fleet(instance("a", publisher, busy), instance("b", server=idle))) as run,
    ):
        publish(run, "a", publisher, vllm_stored(ASKED))
        for load, chosen in (
            (RankLoad(2, 0, 0.1), ("a", "prefix")),
            (RankLoad(64, 64, 0.9), ("b", "load")),
            (RankLoad(float("nan"), 0, 0.9), ("a", "prefix")),
            (RankLoad(None, None, None), ("a", "prefix")),
            (RankLoad(0, 0, 0.99), ("a", "prefix")),
        ):
            busy.loads = {0: load}
            _wait_for_loads(busy, idle)
            answer = run.route(ASKED, model="m", dry_run=True)
            assert (answer["instance"], answer["reason"]) == chosen, load
        shown = answer["candidates"][0]["load"]
        assert shown == {"running": 0, "waiting": 0, "kv_usage": 0.99, "inflight_prefill_tokens": 0}


def test_an_unknown_load_is_null_and_never_the_best() -> None:
    with (
        FakeEngine(EngineKind.VLLM) as silent,
        FakeEngine(EngineKind.VLLM) as busy,
        FakeEngine(EngineKind.SGLANG) as idle,
        serving(fleet(instance("a", server=silent), instance("b", server=busy), instance("c", server=idle))) as run,
    ):
        silent.loads = {0: RankLoad(float("nan"), None, float("nan"))}
        busy.loads, idle.loads = {0: RankLoad(9, 0, 0.5)}, {0: RankLoad(1, 0, 0.1)}
        _wait_for_loads(silent, busy, idle)
        for _ in range(5):
            answer = run.route(prompt(9), model="m", dry_run=True)
            assert answer["instance"] == "c"
        assert [one["load"]["running"] for one in answer["candidates"]] == [None, 9, 1]
        assert [one["load"]["kv_usage"] for one in answer["candidates"]] == [None, 0.5, 0.1]


def test_a_sleeping_engine_gets_nothing_and_holds_nothing() -> None:
    with (
        Publisher() as publisher,
        FakeEngine(EngineKind.VLLM) as engine,
        serving(fleet(instance("a", publisher, engine), instance("b"))) as run,
    ):
        publish(run, "a", publisher, vllm_stored(ASKED))
        engine.asleep = True
        wait_until(lambda: run.worker("a")["asleep"], 5)
        answer = run.route(ASKED, model="m")
        assert answer["instance"] == "b"
        assert why(answer)["a"] == "asleep"
        assert matched(run, ASKED)["a"] == 0
        assert run.worker("a")["resets"] == {"asleep": 1}
        engine.spoil(HTML, "/metrics")
        _wait_for_loads(engine)
        assert run.worker("a")["asleep"] is True  # nobody said that it woke up
        engine.mend()
        engine.asleep = False
        wait_until(lambda: not run.worker("a")["asleep"], 5)
        publish(run, "a", publisher, vllm_stored(ASKED))
        assert run.route(ASKED, model="m")["matched_tokens"] == 64
        assert run.worker("a")["resets"] == {"asleep": 1}


def _wait_for_loads(*engines: FakeEngine) -> None:
    """Until each engine was asked twice more, so that the first answer is surely taken in."""
    path = {EngineKind.VLLM: "/metrics", EngineKind.SGLANG: "/v1/loads"}
    enough = [(engine, path[engine.kind], engine.calls[path[engine.kind]] + 4) for engine in engines]
    wait_until(lambda: all(engine.calls[asked] >= calls for engine, asked, calls in enough), 5)
