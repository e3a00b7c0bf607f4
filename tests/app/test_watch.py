"""What an instance is watched for: where its events are, how many ranks it has, whether it lives."""

from __future__ import annotations

from contextlib import ExitStack

from index.worker import EngineKind
from tests.support.engine_events import prompt, sglang_stored, vllm_stored
from tests.support.fake_engine import HTML, FakeEngine, RankLoad
from tests.support.fleet import fleet, instance, matched, publish
from tests.support.publisher import Publisher, batch, ranks
from tests.support.service import free_url, serving, wait_until

ASKED = prompt(1)


def test_vllm_ranks_are_learnt_from_the_engine_and_steered_to() -> None:
    with ExitStack() as stack:
        publishers = [stack.enter_context(one) for one in ranks(3, topic="kv")]
        engine = stack.enter_context(FakeEngine(EngineKind.VLLM, dp_size=3, topic="kv"))
        engine.events, engine.replay = f"tcp://*:{publishers[0].port}", None
        engine.loads = {rank: RankLoad() for rank in range(3)}
        run = stack.enter_context(serving(fleet(instance("a", server=engine))))
        for rank, publisher in enumerate(publishers):
            publish(run, "a", publisher, vllm_stored(prompt(rank)), rank=rank)
        for rank in range(3):
            answer = run.route(prompt(rank), model="m")
            assert (answer["instance"], answer["dp_rank"], answer["matched_tokens"]) == ("a", rank, 64)
            assert answer["headers"] == {"X-data-parallel-rank": str(rank)}
        assert [one["dp_rank"] for one in run.instance("a")["workers"]] == [0, 1, 2]
        assert run.instance("a")["version"] == "0.32.0"
        run.http.delete("/instances/a").raise_for_status()
        assert run.http.get("/index/stats").json()["bytes"] == 0


def test_sglang_endpoints_are_learnt_from_the_engine() -> None:
    with ExitStack() as stack:
        publishers = [stack.enter_context(one) for one in ranks(2, replay=False)]
        engine = stack.enter_context(FakeEngine(EngineKind.SGLANG, dp_size=2, events=publishers[0].events))
        run = stack.enter_context(serving(fleet(instance("a", server=engine))))
        for rank, publisher in enumerate(publishers):
            publish(run, "a", publisher, sglang_stored(prompt(rank)), rank=rank)
        answer = run.route(prompt(1), model="m")
        assert (answer["dp_rank"], answer["matched_tokens"]) == (1, 64)
        assert answer["headers"] == {"X-data-parallel-rank": "1"}


def test_ranks_of_a_configured_instance_are_at_the_next_ports() -> None:
    with ExitStack() as stack:
        publishers = [stack.enter_context(one) for one in ranks(2, replay=False)]
        run = stack.enter_context(serving(fleet(instance("a", publishers[0], dp_size=2))))
        for rank, publisher in enumerate(publishers):
            publish(run, "a", publisher, vllm_stored(prompt(rank)), rank=rank)
        assert [run.route(prompt(rank), model="m")["dp_rank"] for rank in (0, 1)] == [0, 1]


def test_one_rank_needs_no_steering() -> None:
    with serving(fleet(instance("a"))) as run:
        assert run.route(ASKED, model="m")["headers"] == {}


def test_an_engine_that_came_back_elsewhere_is_followed_there() -> None:
    with ExitStack() as stack:
        former = [stack.enter_context(one) for one in ranks(2)]
        engine = stack.enter_context(FakeEngine(EngineKind.VLLM, dp_size=2, events=former[0].events))
        run = stack.enter_context(serving(fleet(instance("a", server=engine))))
        for rank, publisher in enumerate(former):
            publish(run, "a", publisher, vllm_stored(prompt(rank)), rank=rank)
        publisher = stack.enter_context(Publisher())
        engine.events, engine.replay, engine.dp_size, engine.loads = (
            publisher.events,
            publisher.replay,
            1,
            {0: RankLoad()},
        )
        engine.restart()
        publish(run, "a", publisher, vllm_stored(ASKED))
        wait_until(lambda: len(run.instance("a")["workers"]) == 1, 15, lambda: run.instance("a"))
        assert [matched(run, prompt(number))["a"] for number in (0, 1)] == [0, 64]
        assert run.worker("a")["trust"] == "exact"
        assert run.route(prompt(0), model="m")["dp_rank"] == 0
        former[0].publish(batch(events=[vllm_stored(prompt(5))]))
        publish(run, "a", publisher, vllm_stored(prompt(6)))
        assert [matched(run, prompt(number))["a"] for number in (5, 6)] == [0, 64]


def test_a_look_that_finds_nothing_does_not_end_a_stream() -> None:
    with Publisher() as publisher, FakeEngine(EngineKind.VLLM) as engine:
        engine.events, engine.replay = publisher.events, publisher.replay
        with serving(fleet(instance("a", server=engine))) as run:
            publish(run, "a", publisher, vllm_stored(ASKED))
            engine.spoil(HTML, "/kv_event_sources", "/version")
            asked = engine.calls["/version"]
            wait_until(lambda: engine.calls["/version"] >= asked + 3, 5)
            publish(run, "a", publisher, vllm_stored(prompt(2)))
            assert matched(run, ASKED) == {"a": 64}
            assert run.instance("a")["version"] == "0.32.0"


# Health


def test_ready_means_every_instance_was_reached_or_tried() -> None:
    with (
        FakeEngine(EngineKind.VLLM) as engine,
        serving(fleet(instance("here", server=engine), instance("away"))) as run,
    ):
        early = run.http.get("/readyz")
        assert (early.status_code, "away" in early.json()["waiting_for"]) == (503, True)
        wait_until(lambda: run.http.get("/readyz").json()["waiting_for"] == ["away"], 2)
        wait_until(lambda: run.http.get("/readyz").status_code == 200, 5)
        assert run.instance("away")["state"] == "connecting"
        assert run.http.get("/healthz").json()["status"] == "ok"


def test_an_engine_that_died_is_down_and_comes_back() -> None:
    with Publisher() as publisher, FakeEngine(EngineKind.VLLM) as engine:
        url = engine.url
        with serving(fleet(instance("a", publisher, engine), instance("b", url=free_url()))) as run:
            publish(run, "a", publisher, vllm_stored(ASKED))
            wait_until(lambda: run.instance("a")["version"] is not None, 5)
            engine.spoil(HTML)
            engine.replies["*"] = HTML._replace(delay_s=30)
            publisher.stop()
            wait_until(lambda: run.instance("a")["state"] == "down", 10, lambda: run.instance("a"))
            assert url == run.instance("a")["url"]
            answer = run.route(ASKED, model="m")
            assert answer["instance"] == "b"
            assert "down" in answer["candidates"][0]["why"]
            engine.mend()
            publisher.start()
            wait_until(lambda: run.instance("a")["state"] == "live", 10, lambda: run.instance("a"))
            wait_until(lambda: matched(run, ASKED)["a"] == 64, 5)


def test_an_empty_fleet_is_ready_and_answers() -> None:
    with serving(fleet()) as run:
        assert run.http.get("/readyz").status_code == 200
        assert run.http.get("/instances").json() == {"instances": []}
        answer = run.http.post("/route", json={"model": "m", "token_ids": ASKED})
        assert (answer.status_code, answer.json()["models"]) == (404, [])
