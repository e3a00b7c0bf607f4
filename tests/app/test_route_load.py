"""The load that engines report, in routing answers."""

from __future__ import annotations

from typing import Any

from index.worker import EngineKind
from tests.support.engine_events import prompt, vllm_stored
from tests.support.fake_engine import HTML, FakeEngine, RankLoad
from tests.support.fleet import fleet, instance, matched, publish
from tests.support.publisher import Publisher
from tests.support.service import serving, wait_until

ASKED = prompt(1)


def why(answer: dict[str, Any]) -> dict[str, str | None]:
    return {one["instance"]: one["why"] for one in answer["candidates"]}


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
