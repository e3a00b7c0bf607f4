"""`hash.verify: all`: a stored block with a wrong hash is found, wherever it stands, and has consequences."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from index.block_hash import HashIdentity
from tests.support.engine_events import DEFAULT, prompt, vllm_stored
from tests.support.fleet import fleet, instance, matched, publish, two_instances
from tests.support.publisher import Publisher
from tests.support.service import Running, serving, wait_until

ALL = {"verify": "all"}
SEED_42 = HashIdentity("sha256_cbor", "42")
ASKED = prompt(1)


def wrong(event: dict[str, Any], block: int) -> dict[str, Any]:
    hashes = list(event["block_hashes"])
    hashes[block] ^= 1
    return event | {"block_hashes": hashes}


def verified(run: Running, name: str) -> dict[str, float]:
    return {
        outcome: run.metric(f'kvroute_blocks_verified_total{{dp_rank="0",instance="{name}",outcome="{outcome}"}}')
        for outcome in ("match", "mismatch", "unchecked")
    }


@pytest.mark.parametrize("algorithm", ["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"])
def test_every_block_that_can_be_checked_is_counted(algorithm: str) -> None:
    identity = HashIdentity(algorithm, "0")
    settings = {"algorithm": algorithm, "seed": "0", **ALL}
    with Publisher() as first, serving(fleet(instance("a", first), hash=settings)) as run:
        publish(run, "a", first, vllm_stored(ASKED, identity))
        publish(run, "a", first, vllm_stored(prompt(2), identity), vllm_stored(prompt(3), identity))
        publish(run, "a", first, vllm_stored(prompt(2, 96), identity, skip=4))
        assert verified(run, "a") == {"match": 12, "mismatch": 0, "unchecked": 2}
        assert run.worker("a")["hash"]["status"] == "verified"
        assert matched(run, prompt(2, 96)) == {"a": 96}


@pytest.mark.parametrize("block", [0, 2])
def test_a_worker_with_a_wrong_block_is_refused_until_its_next_process(log_stream: io.StringIO, block: int) -> None:
    with two_instances(hash=ALL) as (run, first, second):
        publish(run, "a", first, vllm_stored(ASKED))
        publish(run, "b", second, vllm_stored(ASKED))
        publish(run, "b", second, wrong(vllm_stored(prompt(2)), block))
        shown = run.worker("b")
        assert (shown["state"], shown["trust"], shown["blocks"]["gpu"]) == ("refused", "none", 0)
        assert shown["hash"] == {
            "status": "mismatch",
            "algorithm": "sha256",
            "seed": "none",
            "expected": {"algorithm": "sha256", "seed": "none"},
            "advice": shown["advice"],
        }
        assert "does not follow from its tokens" in shown["advice"]
        assert verified(run, "b") == {"match": 4 + block, "mismatch": 1, "unchecked": 3 - block}
        assert run.metric('kvroute_hash_mismatch{dp_rank="0",instance="b"}') == 1
        publish(run, "b", second, vllm_stored(prompt(3)))  # a right root block does not take it back
        assert run.worker("b")["state"] == "refused"
        assert run.worker("b")["resets"] == {}
        assert matched(run, ASKED) == {"a": 64, "b": 0}
        second.restart()
        publish(run, "b", second, vllm_stored(ASKED))
        wait_until(lambda: run.worker("b")["trust"] == "exact", 5, lambda: run.worker("b"))
        assert (run.worker("b")["state"], run.worker("b")["hash"]["status"]) == ("live", "verified")
        assert matched(run, ASKED) == {"a": 64, "b": 64}
    told = [line for line in map(json.loads, log_stream.getvalue().splitlines()) if line.get("instance") == "b"]
    assert [line["event"] for line in told if line["level"] == "error"] == [
        "a stored block's hash does not follow from its tokens",
        "worker refused: its block hashes are not the fleet's",
    ]


def test_under_translate_the_wrong_block_alone_is_left_out(log_stream: io.StringIO) -> None:
    with two_instances(hash={"policy": "translate", **ALL}) as (run, first, second):
        publish(run, "a", first, vllm_stored(ASKED))
        for name, publisher, identity in (("a", first, DEFAULT), ("b", second, SEED_42)):
            publish(run, name, publisher, vllm_stored(ASKED, identity))
            publish(run, name, publisher, wrong(vllm_stored(prompt(2), identity), 2), vllm_stored(prompt(3), identity))
            publish(run, name, publisher, vllm_stored(prompt(4), identity))
            shown = run.worker(name)
            assert (shown["state"], shown["trust"], shown["hash"]["status"]) == ("live", "partial", "mismatch")
            assert "does not follow from its tokens" in shown["hash"]["advice"]
            assert run.metric(f'kvroute_hash_mismatch{{dp_rank="0",instance="{name}"}}') == 1
            assert verified(run, name)["mismatch"] == 1
        for number, blocks in ((1, 4), (2, 2), (3, 4), (4, 4)):
            assert matched(run, prompt(number)) == {"a": blocks * 16, "b": blocks * 16}
    told = [json.loads(line)["event"] for line in log_stream.getvalue().splitlines()]
    assert told.count("a stored block's hash does not follow from its tokens") == 2


def test_roots_alone_are_looked_at_unless_all_are_asked_for() -> None:
    models = {"strict": {"hash": ALL}}
    with (
        Publisher() as first,
        Publisher() as second,
        serving(fleet(instance("a", first), instance("b", second, model="strict"), models=models)) as run,
    ):
        for name, publisher in (("a", first), ("b", second)):
            publish(run, name, publisher, vllm_stored(ASKED))
            publish(run, name, publisher, wrong(vllm_stored(prompt(2)), 2))
        assert {name: run.worker(name)["state"] for name in "ab"} == {"a": "live", "b": "refused"}
        assert matched(run, prompt(2)) == {"a": 64}
        assert 'kvroute_blocks_verified_total{dp_rank="0",instance="a"' not in run.http.get("/metrics").text
