"""One state of an instance: against real engine processes that are killed, stopped, restarted, or fail requests."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from deploy.engine.settings import Face
from index.worker import EngineKind
from tests.support.cpu_engine import EngineProcess
from tests.support.engine_events import prompt, vllm_stored
from tests.support.fake_engine import FakeEngine, Reply
from tests.support.fleet import counts, fleet, instance, publish
from tests.support.publisher import Publisher
from tests.support.service import Running, serving, wait_until

pytestmark = pytest.mark.xdist_group("availability")

POLLING = {"load_interval_s": 0.2, "discovery_interval_s": 5.0, "timeout_s": 2.0}
SILENT_S = 1.0
QUICK = {"silent_s": SILENT_S}
HANGS = Reply("", delay_s=60.0)
"""To every question, as an API server does that is stopped."""


def settings_of(engine: EngineProcess, name: str, face: Face = "vllm") -> dict[str, Any]:
    return {
        "id": name,
        "engine": face,
        "model": "tiny",
        "url": engine.url,
        "events": f"tcp://127.0.0.1:{engine.events}",
        "replay": f"tcp://127.0.0.1:{engine.replay}",
    }


@contextmanager
def two_engines(face: Face) -> Iterator[tuple[Running, EngineProcess, EngineProcess]]:
    """The service with engines `a` and `b` of this face, both live."""
    engines = [EngineProcess("--face", face, "--prefill-us", "0", "--decode-us", "0") for _ in range(2)]
    try:
        for engine in engines:
            engine.start()
        own = [settings_of(engine, name, face) for engine, name in zip(engines, "ab", strict=True)]
        with serving(fleet(*own, polling=POLLING, availability=QUICK)) as run:
            for name in "ab":
                wait_until(lambda name=name: run.instance(name)["state"] == "live", 15)  # type: ignore[misc]
            first, second = engines
            yield run, first, second
    finally:
        for engine in engines:
            engine.close()


def chosen(run: Running, tokens: list[int]) -> str:
    return str(run.route(tokens, model="tiny")["instance"])


def eligible(run: Running, name: str) -> bool:
    return bool(run.candidates(TOKENS, model="tiny")[name]["eligible"])


TOKENS = list(range(2, 162))


def warm(run: Running, engine: EngineProcess, name: str) -> None:
    """Have an engine compute a prompt, and wait until the router knows."""
    body = {"model": "tiny", "prompt": TOKENS, "max_tokens": 2, "ignore_eos": True}
    httpx.post(f"{engine.url}/v1/completions", json=body, timeout=30.0, trust_env=False).raise_for_status()
    wait_until(lambda: chosen(run, TOKENS) == name and run.route(TOKENS, model="tiny")["reason"] == "prefix", 15)


@pytest.mark.parametrize("face", ["vllm", "sglang"])
def test_a_killed_engine_is_out_at_once_and_its_next_process_promises_nothing_of_the_former(face: Face) -> None:
    with two_engines(face) as (run, first, _):
        warm(run, first, "a")
        first.stop(signal.SIGKILL)
        wait_until(lambda: not eligible(run, "a"), 3.0, lambda: run.instance("a"))
        assert chosen(run, TOKENS) == "b"
        wait_until(lambda: run.instance("a")["state"] == "down", 5, lambda: run.instance("a"))
        shown = run.instance("a")
        assert shown["why"]
        assert shown["since"] >= 0
        assert run.metric('kvroute_instance_state{instance="a",state="down"}') == 1
        first.start()
        wait_until(lambda: eligible(run, "a"), 15, lambda: run.instance("a"))
        row = run.candidates(TOKENS, model="tiny")["a"]
        assert row["matched_tokens"] == 0
        wait_until(lambda: run.instance("a")["state"] == "live", 15, lambda: run.instance("a"))
        wait_until(lambda: counts(run, "a"), 15)
        assert run.candidates(TOKENS, model="tiny")["a"]["matched_tokens"] == 0


@pytest.mark.parametrize("face", ["vllm", "sglang"])
def test_a_stopped_engine_is_out_within_the_silence_that_is_allowed_and_back_with_its_cache(face: Face) -> None:
    with two_engines(face) as (run, first, _):
        warm(run, first, "a")
        assert first._process is not None
        os.kill(first._process.pid, signal.SIGSTOP)
        try:
            wait_until(lambda: run.instance("a")["state"] == "down", SILENT_S + 5, lambda: run.instance("a"))
            row = run.candidates(TOKENS, model="tiny")["a"]
            assert not row["eligible"]
            assert row["state"] == "down"
            assert chosen(run, TOKENS) == "b"
        finally:
            os.kill(first._process.pid, signal.SIGCONT)
        wait_until(lambda: run.instance("a")["state"] == "live", 10, lambda: run.instance("a"))
        wait_until(lambda: chosen(run, TOKENS) == "a", 10)


def test_a_dead_scheduler_does_not_come_back_because_its_api_server_still_answers_something() -> None:
    """SGLang: the model list is answered at once, `/server_info` never, while the event stream is gone."""
    with two_engines("sglang") as (run, first, _):
        first.tell(signal.SIGUSR1)
        wait_until(lambda: not eligible(run, "a"), 3.0, lambda: run.instance("a"))
        end = time.monotonic() + 2 * POLLING["timeout_s"] + 2 * SILENT_S
        while time.monotonic() < end:
            assert not eligible(run, "a"), run.instance("a")
            time.sleep(0.02)


def test_the_only_engine_of_a_model_that_is_down_is_503_with_the_reason() -> None:
    with FakeEngine(EngineKind.VLLM) as engine:
        own = instance("a", server=engine)
        with serving(fleet(own, polling=POLLING, availability=QUICK)) as run:
            wait_until(lambda: run.instance("a")["state"] == "live", 10)
            engine.replies["*"] = HANGS
            wait_until(lambda: run.instance("a")["state"] == "down", 10, lambda: run.instance("a"))
            answer = run.http.post("/route", json={"model": "m", "token_ids": [1, 2]})
            assert answer.status_code == 503
            assert answer.headers["retry-after"]
            assert "down" in answer.json()["instances"][0]["why"]
            engine.replies.clear()
            wait_until(lambda: run.instance("a")["state"] == "live", 10, lambda: run.instance("a"))


@pytest.mark.parametrize(("kind", "path"), [(EngineKind.VLLM, "/health"), (EngineKind.SGLANG, "/ready")])
def test_an_engine_that_says_it_is_ill_is_out_though_it_answers_and_streams(kind: EngineKind, path: str) -> None:
    with Publisher() as publisher, FakeEngine(kind) as engine, FakeEngine(kind) as other:
        settings = fleet(instance("a", publisher, engine), instance("b", server=other), polling=POLLING)
        with serving(settings) as run:
            publisher.wait_for_subscriber()
            wait_until(lambda: run.instance("a")["state"] == run.instance("b")["state"] == "live", 10)
            engine.replies[path] = Reply("", 503)
            wait_until(lambda: run.instance("a")["state"] == "down", 10, lambda: run.instance("a"))
            assert "503" in run.instance("a")["why"]
            assert {run.route(prompt(number), model="m")["instance"] for number in range(8)} == {"b"}
            engine.replies.clear()
            wait_until(lambda: run.instance("a")["state"] == "live", 10, lambda: run.instance("a"))


def test_a_starting_engine_gets_nothing_before_its_http_answers() -> None:
    with Publisher() as publisher, FakeEngine(EngineKind.VLLM) as engine, FakeEngine(EngineKind.VLLM) as other:
        settings = fleet(instance("a", publisher, engine), instance("b", server=other), polling=POLLING)
        with serving(settings) as run:
            publish(run, "a", publisher, vllm_stored(prompt(1)))
            wait_until(lambda: run.instance("a")["state"] == run.instance("b")["state"] == "live", 10)
            engine.replies["*"] = Reply("", 502)
            publisher.stop()
            wait_until(lambda: run.instance("a")["state"] == "down", 10, lambda: run.instance("a"))
            publisher.restart(missed=[])
            wait_until(lambda: run.instance("a")["state"] in ("starting", "down"), 10, lambda: run.instance("a"))
            for _ in range(10):
                assert run.route(prompt(1), model="m")["instance"] == "b"
            engine.restart()
            engine.replies.clear()
            wait_until(lambda: run.instance("a")["state"] == "live", 10, lambda: run.instance("a"))
            assert run.candidates(prompt(1), model="m")["a"]["matched_tokens"] == 0


def finished(run: Running, request_id: str, **body: Any) -> None:
    assert run.http.post(f"/requests/{request_id}/finished", json=body).status_code == 204


def test_failures_in_a_row_eject_an_engine_until_a_trial_succeeds() -> None:
    with Publisher() as publisher, FakeEngine(EngineKind.VLLM) as engine, FakeEngine(EngineKind.VLLM) as other:
        rules = {"silent_s": 6.0, "eject_failures": 3, "eject_s": 0.5, "trial_s": 5.0}
        settings = fleet(instance("a", publisher, engine), instance("b", server=other), availability=rules)
        with serving(settings) as run:
            publish(run, "a", publisher, vllm_stored(prompt(1)))
            wait_until(lambda: run.instance("a")["state"] == run.instance("b")["state"] == "live", 10)
            for _ in range(3):
                answer = run.route(prompt(1), model="m")
                assert answer["instance"] == "a"
                finished(run, answer["request_id"], error={"kind": "status", "status": 500})
            assert run.instance("a")["state"] == "ejected"
            assert "failed" in run.instance("a")["why"]
            assert run.metric('kvroute_ejections_total{instance="a",reason="status"}') == 1
            assert run.route(prompt(1), model="m", dry_run=True)["instance"] == "b"
            alone = run.route(prompt(1), model="m", candidates=["a"], dry_run=True)
            assert alone["instance"] == "a", "never the last one that a request can have"
            wait_until(lambda: run.route(prompt(1), model="m", dry_run=True)["instance"] == "a", 5)
            trial = run.route(prompt(1), model="m")
            assert trial["instance"] == "a"
            assert run.route(prompt(1), model="m")["instance"] == "b", "one trial at a time"
            finished(run, trial["request_id"], cached_tokens=48, prompt_tokens=64)
            assert run.instance("a")["state"] == "live"
            assert run.route(prompt(1), model="m")["instance"] == "a"


@pytest.mark.parametrize("error", [{"kind": "aborted"}, {"kind": "status", "status": 429}])
def test_what_is_not_the_engines_fault_ejects_nobody(error: dict[str, Any]) -> None:
    with FakeEngine(EngineKind.VLLM) as engine, serving(fleet(instance("a", server=engine))) as run:
        wait_until(lambda: run.instance("a")["state"] == "live", 10)
        for _ in range(10):
            finished(run, run.route(prompt(1), model="m")["request_id"], error=error)
        assert run.instance("a")["state"] == "live"


def test_a_text_does_not_wait_for_an_engine_that_hangs_when_another_can_tokenise() -> None:
    with FakeEngine(EngineKind.VLLM) as engine, FakeEngine(EngineKind.VLLM) as other:
        settings = fleet(instance("a", server=engine), instance("b", server=other), polling=POLLING)
        with serving(settings) as run:
            wait_until(lambda: run.instance("a")["state"] == run.instance("b")["state"] == "live", 10)
            engine.replies["/tokenize"] = HANGS
            for _ in range(6):
                began = time.monotonic()
                answer = run.http.post("/route", json={"model": "m", "prompt": "hello", "strict": True})
                assert answer.status_code == 200, answer.text
                assert time.monotonic() - began < 2.5
