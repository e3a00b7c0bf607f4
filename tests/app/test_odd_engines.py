"""Engines that say impossible things, or fall silent: neither ends the process, nor is anything claimed for long."""

from __future__ import annotations

import time

import pytest

from index.worker import EngineKind
from tests.support.engine_events import vllm_removed, vllm_stored
from tests.support.fake_engine import FakeEngine
from tests.support.fleet import fleet, instance
from tests.support.publisher import Publisher, batch
from tests.support.redis_server import RedisServer
from tests.support.service import serving, wait_until

PROMPT = list(range(100, 164))


@pytest.mark.parametrize("url", ["http://xn--zz:8000", f"http://{'a' * 70}:8000", "http://a..b:8000"])
def test_a_host_that_cannot_be_looked_up_is_refused(url: str) -> None:
    with serving(fleet()) as running:
        answer = running.http.post("/instances", json={"id": "x", "engine": "vllm", "model": "m", "url": url})
        assert answer.status_code == 422
        assert answer.json()["field"] == "url"
        assert running.http.get("/healthz").status_code == 200


def test_a_parent_announced_twice_in_one_event_adopts_its_children_once() -> None:
    child = vllm_stored(PROMPT, skip=2)
    root = vllm_stored(PROMPT[:32])
    first = root["block_hashes"][0]
    child["parent_block_hash"] = first
    root["block_hashes"] = [first, first]
    with Publisher() as publisher, serving(fleet(instance("one", publisher))) as running:
        publisher.wait_for_subscriber()
        publisher.publish(batch(events=[child]))
        publisher.publish(batch(events=[root]))
        running.wait_for_seq("one", 1)
        assert running.worker("one")["parked"] == 0
        assert running.http.get("/healthz").status_code == 200


@pytest.mark.parametrize("ts", [1e306, -1e306, 4e12])
def test_an_impossible_time_is_stored_as_unknown(ts: float) -> None:
    with RedisServer() as redis, Publisher() as publisher:
        with serving(fleet(instance("one", publisher), state=redis.url)) as running:
            publisher.wait_for_subscriber()
            publisher.publish(batch(events=[vllm_stored(PROMPT[:32])]))
            publisher.publish(batch(ts, [vllm_stored(PROMPT, skip=2)]))
            publisher.publish(batch(events=[]))
            wait_until(lambda: running.worker("one")["seq"] in (2, 0), 5.0, lambda: running.worker("one"))
            assert running.http.get("/healthz").status_code == 200
        assert running.service.failed is False


def test_messages_that_are_no_batches_show_an_instance_as_broken() -> None:
    with Publisher() as publisher, serving(fleet(instance("one", publisher))) as running:
        publisher.wait_for_subscriber()
        wait_until(lambda: running.worker("one")["trust"] == "exact", 5.0)
        for number in range(5):
            publisher.send_frames(b"", number.to_bytes(8, "big"), batch(events=[vllm_stored(PROMPT)]), b"one too many")
        wait_until(lambda: running.worker("one")["trust"] == "none", 5.0, lambda: running.worker("one"))
        worker = running.worker("one")
        assert worker["wire_errors"]
        assert worker["trust"] == "none"
        assert "unusable" in worker["advice"]


def test_a_stream_that_is_lost_claims_nothing_though_http_answers() -> None:
    with (
        FakeEngine(EngineKind.VLLM) as engine,
        Publisher() as publisher,
        serving(fleet(instance("one", publisher, engine))) as running,
    ):
        publisher.wait_for_subscriber()
        publisher.publish(batch(events=[vllm_stored(PROMPT)]))
        running.wait_for_seq("one", 0)
        assert running.candidates(PROMPT, model="m")["one"]["matched_tokens"] == 64
        publisher.stop()
        wait_until(lambda: running.candidates(PROMPT, model="m")["one"]["matched_tokens"] == 0, 5.0)
        assert running.worker("one")["trust"] == "none"
        assert running.route(PROMPT, model="m")["instance"] == "one"
        publisher.start()
        wait_until(lambda: running.candidates(PROMPT, model="m")["one"]["matched_tokens"] == 64, 5.0)
        publisher.publish(batch(events=[vllm_removed(vllm_stored(PROMPT))]))
        wait_until(lambda: running.candidates(PROMPT, model="m")["one"]["matched_tokens"] == 0, 5.0)
        assert running.worker("one")["trust"] == "exact"


def test_thousands_of_removals_of_waiting_blocks_are_quick() -> None:
    count = 20_000
    orphan = {**vllm_stored(PROMPT), "block_hashes": list(range(10, 10 + count)), "parent_block_hash": 5}
    orphan |= {"token_ids": [7] * (count * 16), "extra_keys": None}
    removal = {**vllm_removed(orphan), "block_hashes": list(range(9 + count, 9, -1))}
    with Publisher() as publisher, serving(fleet(instance("one", publisher))) as running:
        publisher.wait_for_subscriber()
        publisher.publish(batch(events=[orphan]))
        publisher.publish(batch(events=[removal]))
        began = time.monotonic()
        running.wait_for_seq("one", 1)
        assert time.monotonic() - began < 5.0  # it took minutes when each removal searched the whole event


def test_a_new_process_behind_an_open_connection_is_noticed_by_its_fingerprint() -> None:
    with (
        FakeEngine(EngineKind.VLLM) as engine,
        Publisher() as publisher,
        serving(fleet(instance("one", publisher, engine))) as running,
    ):
        publisher.wait_for_subscriber()
        publisher.publish(batch(events=[vllm_stored(PROMPT)]))
        running.wait_for_seq("one", 0)
        wait_until(lambda: running.instance("one")["reachable"] is True, 5.0)
        assert running.candidates(PROMPT, model="m")["one"]["matched_tokens"] == 64
        publisher.start_over()
        engine.restart()
        wait_until(lambda: running.candidates(PROMPT, model="m")["one"]["matched_tokens"] == 0, 5.0)


def test_a_mistake_of_our_own_costs_the_worker_not_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    with Publisher() as publisher, serving(fleet(instance("one", publisher))) as running:
        publisher.wait_for_subscriber()
        publisher.publish(batch(events=[vllm_stored(PROMPT)]))
        running.wait_for_seq("one", 0)

        def fail(*_: object, **__: object) -> None:
            raise RuntimeError("a mistake")

        with monkeypatch.context() as patch:
            for way in ("apply", "apply_payloads"):
                patch.setattr(running.service.around.index, way, fail)
            publisher.publish(batch(events=[]))
            running.wait_for_seq("one", 1)
        wait_until(lambda: running.worker("one")["wire_errors"] == {"internal": 1}, 5.0)
        assert running.worker("one")["trust"] == "partial"
        assert running.candidates(PROMPT, model="m")["one"]["matched_tokens"] == 0
        publisher.publish(batch(events=[vllm_stored(PROMPT)]))
        wait_until(lambda: running.candidates(PROMPT, model="m")["one"]["matched_tokens"] == 64, 5.0)
        assert running.http.get("/healthz").status_code == 200
