"""One NONE_HASH identity per model: who sets it, who is refused, and what is said about it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from index.block_hash import HashIdentity
from index.worker import EngineKind
from tests.support.engine_events import DEFAULT, prompt, sglang_stored, vllm_stored
from tests.support.fake_engine import FakeEngine
from tests.support.fleet import fleet, instance, matched, publish, rows_of, two_instances
from tests.support.golden import Stream, vllm_stream, vllm_streams
from tests.support.publisher import Publisher, ranks
from tests.support.service import Running, serving, wait_until

SEED_42 = HashIdentity("sha256_cbor", "42")
UNKNOWN = HashIdentity("xxhash", "1d9f" * 16)
"""As an engine with xxhash and no PYTHONHASHSEED: a seed that nobody can name."""
ASKED = prompt(1)


def hash_of(running: Running, name: str) -> dict[str, Any]:
    shown: dict[str, Any] = running.worker(name)["hash"]
    return shown


def test_the_first_derivable_instance_sets_the_identity_and_others_are_refused(log_stream: io.StringIO) -> None:
    with two_instances() as (run, first, second):
        publish(run, "a", first, vllm_stored(ASKED))
        publish(run, "b", second, vllm_stored(ASKED, SEED_42))
        for number in range(2, 9):
            publish(run, "b", second, vllm_stored(prompt(number), SEED_42))
        assert hash_of(run, "a") == {
            "status": "verified",
            "algorithm": "sha256",
            "seed": "none",
            "expected": {"algorithm": "sha256", "seed": "none"},
            "advice": None,
        }
        refused = run.worker("b")
        assert refused["state"] == run.instance("b")["state"] == "refused"
        assert refused["trust"] == "none"
        assert refused["blocks"]["gpu"] == 0
        assert refused["hash"]["status"] == "mismatch"
        assert (refused["hash"]["algorithm"], refused["hash"]["seed"]) == ("sha256_cbor", "42")
        assert refused["hash"]["expected"] == {"algorithm": "sha256", "seed": "none"}
        for words in (
            "sha256_cbor",
            "PYTHONHASHSEED=42",
            "--prefix-caching-hash-algo sha256",
            "without PYTHONHASHSEED",
        ):
            assert words in refused["hash"]["advice"]
        assert matched(run, ASKED) == {"a": 64, "b": 0}
        assert run.metric('kvroute_hash_mismatch{dp_rank="0",instance="a"}') == 0
        assert run.metric('kvroute_hash_mismatch{dp_rank="0",instance="b"}') == 1
        assert run.metric('kvroute_worker_state{dp_rank="0",instance="b",state="refused"}') == 1
    told = [line for line in map(json.loads, log_stream.getvalue().splitlines()) if "refused" in str(line["event"])]
    assert len(told) == 1
    assert told[0]["instance"] == "b"


def test_a_refused_instance_that_died_is_down_and_gets_nothing() -> None:
    with two_instances() as (run, first, second):
        publish(run, "a", first, vllm_stored(ASKED))
        publish(run, "b", second, vllm_stored(ASKED, SEED_42))
        run.wait_for_state("b", "refused")
        second.stop()
        run.wait_for_state("b", "down")
        assert "is it running?" in run.worker("b")["advice"]
        shown = run.route(ASKED, model="m", candidates=["a", "b"], explain=True)["candidates"]
        assert {one["instance"]: one["eligible"] for one in shown} == {"a": True, "b": False}
        second.start()
        run.wait_for_state("b", "refused")


def test_a_refused_instance_still_gets_requests_by_load() -> None:
    with two_instances() as (run, first, second):
        publish(run, "a", first, vllm_stored(ASKED))
        publish(run, "b", second, vllm_stored(ASKED, SEED_42))
        chosen = {run.route(prompt(number), model="m")["instance"] for number in range(10, 20)}
        assert chosen == {"a", "b"}
        only = run.route(ASKED, model="m", candidates=["b"])
        assert (only["instance"], only["reason"], only["trust"]) == ("b", "fallback", "none")
        assert run.route(ASKED, model="m")["reason"] == "prefix"


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({"algorithm": "sha256_cbor", "seed": "42"}, "a"),
        ({"algorithm": "sha256", "seed": "none"}, "b"),
        ({"algorithm": "sha256_cbor"}, "a"),
        ({"seed": "42"}, "a"),
        ({"seed": "none"}, "b"),
    ],
)
def test_stated_identities_win_over_who_came_first(settings: dict[str, str], refused: str) -> None:
    with two_instances(hash=settings) as (run, first, second):
        publish(run, "a", first, vllm_stored(ASKED))
        publish(run, "b", second, vllm_stored(ASKED, SEED_42))
        assert {name: run.worker(name)["state"] for name in "ab"} == {"a": "live", "b": "live", refused: "refused"}


def test_a_model_has_an_identity_of_its_own() -> None:
    models = {"other": {"hash": {"algorithm": "sha256_cbor", "seed": "42"}}}
    with (
        Publisher() as first,
        Publisher() as second,
        Publisher() as third,
        serving(
            fleet(
                instance("a", first),
                instance("b", second, model="other"),
                instance("c", third, model="other"),
                models=models,
            )
        ) as run,
    ):
        publish(run, "a", first, vllm_stored(ASKED))
        publish(run, "b", second, vllm_stored(ASKED, SEED_42))
        publish(run, "c", third, vllm_stored(ASKED))
        assert {name: run.worker(name)["state"] for name in "abc"} == {"a": "live", "b": "live", "c": "refused"}
        assert matched(run, ASKED, model="other") == {"b": 64, "c": 0}


def test_translate_refuses_nobody_and_answers_for_everyone() -> None:
    known = {"a": DEFAULT, "b": SEED_42, "c": UNKNOWN, "d": HashIdentity("sha256_cbor", "7")}
    with ExitStack() as stack:
        publishers = {name: stack.enter_context(Publisher()) for name in known}
        settings = fleet(*(instance(*pair) for pair in publishers.items()), hash={"policy": "translate"})
        run = stack.enter_context(serving(settings))
        for name, identity in known.items():
            publish(run, name, publishers[name], vllm_stored(ASKED, identity))
        assert matched(run, ASKED) == dict.fromkeys(known, 64)
        assert {run.worker(name)["state"] for name in known} == {"live"}
        assert {run.worker(name)["trust"] for name in known} == {"exact"}
        assert [hash_of(run, name)["status"] for name in known] == ["verified", "mismatch", "mismatch", "mismatch"]
        assert "PYTHONHASHSEED" in hash_of(run, "c")["advice"]


@pytest.mark.no_cover
def test_translate_gives_every_recorded_answer_also_to_deviating_engines() -> None:
    streams = {name: vllm_stream(name) for name in vllm_streams()}
    identity = {"algorithm": "xxhash", "seed": "1234", "policy": "translate"}
    with ExitStack() as stack:
        publishers = {name: stack.enter_context(Publisher(topic=one.topic)) for name, one in streams.items()}
        settings = [
            instance(name, publishers[name], model=name, topic=one.topic, **one.settings)
            for name, one in streams.items()
        ]
        run = stack.enter_context(serving(fleet(*settings, hash=identity)))
        asked = sum(_play(run, name, publishers[name], one) for name, one in streams.items())
        assert asked > 1000
        assert {name: hash_of(run, name)["status"] for name in streams} == dict.fromkeys(streams, "mismatch")
        assert {run.worker(name)["trust"] for name in streams} == {"exact"}


def _play(run: Running, name: str, publisher: Publisher, stream: Stream) -> int:
    asked = 0
    for row in rows_of(run, name, publisher, stream, lambda row: row.adapter_path != "/adapters/sql-v2"):
        found = run.candidates(row.tokens, model=name, **row.fields)[name]
        assert {key: found[key] for key in row.expected} == row.expected, (name, row)
        asked += 1
    return asked


def test_a_seed_that_nobody_can_name_is_said_to_be_one() -> None:
    with Publisher() as first, serving(fleet(instance("a", first))) as run:
        publish(run, "a", first, vllm_stored(ASKED, UNKNOWN))
        shown = run.worker("a")
        assert shown["state"] == "refused"
        assert (shown["hash"]["algorithm"], shown["hash"]["seed"], shown["hash"]["expected"]) == (None, None, None)
        assert "random" in shown["hash"]["advice"]
        assert "PYTHONHASHSEED" in shown["advice"]


@contextmanager
def told(algorithm: str | None) -> Iterator[tuple[Running, Publisher, FakeEngine]]:
    """The service with instance a, whose metrics name an algorithm."""
    with Publisher() as publisher, FakeEngine(EngineKind.VLLM, hash_algorithm=algorithm) as engine:
        engine.events, engine.replay = publisher.events, publisher.replay
        with serving(fleet(instance("a", publisher, engine))) as run:
            yield run, publisher, engine


def test_the_advice_does_not_name_an_algorithm_that_the_engines_metrics_rule_out() -> None:
    with told("sha256_cbor") as (run, publisher, _):
        publish(run, "a", publisher, vllm_stored(ASKED, UNKNOWN._replace(algorithm="sha256_cbor")))
        shown = run.worker("a")
        assert shown["state"] == "refused"
        assert "block hashes are sha256_cbor by this engine's metrics" in shown["advice"]
        assert "xxhash" not in shown["advice"]


def test_the_advice_follows_what_the_metrics_say_later() -> None:
    with told(None) as (run, publisher, engine):
        for number in range(1, 9):  # so many that few of the next would be looked at
            publish(run, "a", publisher, vllm_stored(prompt(number), UNKNOWN))
        assert "perhaps xxhash" in run.worker("a")["advice"]
        engine.hash_algorithm = "xxhash"
        looks = engine.calls["/version"]
        wait_until(lambda: engine.calls["/version"] > looks + 2, 5, lambda: engine.calls)
        publish(run, "a", publisher, vllm_stored(prompt(9), UNKNOWN))
        shown = run.worker("a")
        assert "block hashes are xxhash by this engine's metrics" in shown["advice"]
        assert shown["hash"]["advice"] == shown["advice"]
        assert shown["state"] == "refused"


def test_every_rank_with_a_random_seed_of_its_own_is_refused() -> None:
    with ExitStack() as stack:
        publishers = [stack.enter_context(one) for one in ranks(2, replay=False)]
        run = stack.enter_context(serving(fleet(instance("a", publishers[0], dp_size=2))))
        for rank, publisher in enumerate(publishers):
            seed = UNKNOWN._replace(seed=f"{rank}" * 64)
            publish(run, "a", publisher, vllm_stored(ASKED, seed), rank=rank)
        workers = run.instance("a")["workers"]
        assert [(one["dp_rank"], one["state"], one["hash"]["status"]) for one in workers] == [
            (0, "refused", "mismatch"),
            (1, "refused", "mismatch"),
        ]


def test_a_refused_engine_that_comes_back_with_the_right_seed_is_exact_again() -> None:
    with two_instances() as (run, first, second):
        publish(run, "a", first, vllm_stored(ASKED))
        publish(run, "b", second, vllm_stored(ASKED, SEED_42))
        assert run.worker("b")["state"] == "refused"
        second.restart()
        publish(run, "b", second, vllm_stored(ASKED))
        wait_until(lambda: run.worker("b")["state"] == "live", 5, lambda: run.worker("b"))
        shown = run.worker("b")
        assert (shown["trust"], shown["hash"]["status"], shown["advice"]) == ("exact", "verified", None)
        assert matched(run, ASKED) == {"a": 64, "b": 64}
        assert run.metric('kvroute_hash_mismatch{dp_rank="0",instance="b"}') == 0


def test_one_verified_block_outweighs_an_earlier_mismatch() -> None:
    with two_instances() as (run, first, second):
        publish(run, "a", first, vllm_stored(ASKED))
        early = vllm_stored(prompt(2))
        odd = vllm_stored(prompt(3), SEED_42)  # as an old release, whose events leave an extra key out
        publish(run, "b", second, early | {"parent_block_hash": 5, "block_hashes": [1, 2, 3, 4]}, odd)
        assert run.worker("b")["state"] == "refused"
        publish(run, "b", second, vllm_stored(ASKED))
        wait_until(lambda: run.worker("b")["trust"] == "exact", 5, lambda: run.worker("b"))
        assert run.worker("b")["state"] == "live"
        assert run.worker("b")["resets"] == {"identity": 1}
        assert matched(run, prompt(3))["b"] == 64  # replayed: what was dropped while refused is back
        assert matched(run, ASKED)["b"] == 64


def test_sglang_has_no_seed_to_be_refused_for() -> None:
    odd = sglang_stored(ASKED) | {"block_hashes": list(range(1, 65))}
    with Publisher() as first, Publisher() as second:
        settings = fleet(
            instance("a", first, engine="sglang"),
            instance("b", second, engine="sglang"),
            hash={"algorithm": "sha256_cbor", "seed": "42"},
        )
        with serving(settings) as run:
            publish(run, "a", first, sglang_stored(ASKED))
            publish(run, "b", second, odd)
            assert {name: run.worker(name)["state"] for name in "ab"} == {"a": "live", "b": "live"}
            assert hash_of(run, "b")["status"] == "none"
            assert matched(run, ASKED) == {"a": 64, "b": 64}


def test_an_sglang_release_with_unusable_events_is_refused_until_it_is_replaced() -> None:
    with Publisher() as publisher, FakeEngine(EngineKind.SGLANG, version="0.5.5") as engine:
        engine.events, engine.replay = publisher.events, publisher.replay
        with serving(fleet(instance("a", publisher, engine))) as run:
            publish(run, "a", publisher, sglang_stored(ASKED))
            wait_until(lambda: run.worker("a")["state"] == "refused", 5, lambda: run.worker("a"))
            publish(run, "a", publisher, sglang_stored(prompt(2)))
            shown = run.worker("a")
            assert (shown["state"], shown["trust"], shown["blocks"]["gpu"]) == ("refused", "none", 0)
            assert "0.5.6" in shown["advice"]
            assert matched(run, ASKED) == {"a": 0}
            publisher.restart()
            publish(run, "a", publisher, sglang_stored(ASKED))
            wait_until(lambda: run.worker("a")["state"] == "refused", 5, lambda: run.worker("a"))
            engine.version = "0.5.22"
            engine.restart()
            publisher.restart()
            publish(run, "a", publisher, sglang_stored(ASKED))
            wait_until(lambda: matched(run, ASKED) == {"a": 64}, 5, lambda: run.worker("a"))
            wait_until(lambda: run.worker("a")["state"] == "live", 5, lambda: run.worker("a"))
            assert run.worker("a")["advice"] is None


def test_the_identity_goes_with_the_models_last_vllm_instance() -> None:
    with Publisher() as first, Publisher() as second, Publisher() as third:
        settings = fleet(instance("a", first), instance("s", third, engine="sglang"))
        with serving(settings) as run:
            publish(run, "a", first, vllm_stored(ASKED))
            assert run.http.delete("/instances/a").status_code == 204
            assert run.http.post("/instances", json=instance("b", second)).status_code == 201
            publish(run, "b", second, vllm_stored(ASKED, SEED_42))
            assert hash_of(run, "b")["status"] == "verified"
            assert hash_of(run, "b")["expected"] == {"algorithm": "sha256_cbor", "seed": "42"}
