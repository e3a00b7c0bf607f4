"""What is lost on the way from an engine, and what the index says afterwards: the truth, or less, never more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest

from index.worker import EngineKind
from tests.support.engine_events import CLEARED, prompt, vllm_removed, vllm_stored
from tests.support.fake_engine import HTML, FakeEngine
from tests.support.fleet import fleet, instance, matched, rows_of, seq_of, wait_for_seq
from tests.support.golden import Stream, sglang_stream, vllm_stream
from tests.support.publisher import Publisher, batch
from tests.support.service import Running, serving, wait_until

FIRST, SECOND, THIRD = prompt(1), prompt(2), prompt(3)


@contextmanager
def following(publisher: Publisher, server: FakeEngine | None = None, **fields: Any) -> Iterator[Running]:
    """The service with instance a, once it follows the publisher."""
    with serving(fleet(instance("a", publisher, server, **fields))) as run:
        publisher.wait_for_subscriber()
        run.wait_for_state("a", "live")
        yield run


def stored(*tokens: list[int]) -> bytes:
    return batch(events=[vllm_stored(one) for one in tokens])


def removed(*tokens: list[int]) -> bytes:
    return batch(events=[vllm_removed(vllm_stored(one)) for one in tokens])


def publish(run: Running, publisher: Publisher, payload: bytes) -> None:
    wait_for_seq(run, "a", publisher.publish(payload))


def wait_for(run: Running, **expected: Any) -> dict[str, Any]:
    """Until the worker shows these values; all that it shows then."""
    wait_until(lambda: expected.items() <= run.worker("a").items(), 10, lambda: (expected, run.worker("a")))
    return run.worker("a")


def held(run: Running, *prompts: list[int]) -> list[int]:
    return [matched(run, tokens)["a"] for tokens in prompts]


# Holes that a replay fills


@pytest.mark.no_cover
@pytest.mark.parametrize("stream", [vllm_stream("sha256_cbor"), sglang_stream("page16")], ids=["vllm", "sglang"])
def test_every_recorded_row_is_exact_although_batches_and_parts_of_replays_are_lost(stream: Stream) -> None:
    random, last = Random(4), max(stream.payloads)
    with Publisher(topic=stream.topic) as publisher:
        lost = publisher.faults.drop_live = {seq for seq in stream.payloads if 0 < seq < last and random.random() < 0.5}
        publisher.faults.lose_in_replay = {seq: 1 for seq in lost if random.random() < 0.5}
        with following(publisher, topic=stream.topic, engine=stream.engine) as run:
            asked = 0
            for row in rows_of(
                run, "a", publisher, stream, lambda row: row.after_seq not in lost and row.adapter_path is None
            ):
                found = run.candidates(row.tokens, model="m", **row.fields)["a"]
                assert {key: found[key] for key in row.expected} == row.expected, row
                asked += 1
            shown = run.worker("a")
            assert asked > 50
            assert (shown["trust"], shown["resets"]) == ("exact", {})
            assert shown["gaps"] >= 3
            assert shown["replayed_batches"] >= len(lost)
            assert run.metric("kvroute_event_gaps_total") == shown["gaps"]
            assert run.metric("kvroute_event_replayed_batches_total") == shown["replayed_batches"]


def test_replays_that_break_off_are_asked_for_until_they_are_whole() -> None:
    with Publisher() as publisher, following(publisher) as run:
        publish(run, publisher, stored(FIRST))
        publisher.faults.drop_live, publisher.faults.stop_after = set(range(1, 10)), 3
        publisher.publish_all(stored(prompt(number)) for number in range(2, 12))
        wait_for_seq(run, "a", 10)
        run.wait_for_trust("a", "exact")
        shown = run.worker("a")
        assert (shown["gaps"], shown["resets"]) == (1, {})
        assert held(run, *map(prompt, range(1, 12))) == [64] * 11
        assert len(publisher.requests) >= 4


def test_a_tail_that_nothing_followed_is_found_by_a_probe() -> None:
    with Publisher() as publisher, following(publisher) as run:
        publish(run, publisher, stored(FIRST, SECOND))
        publisher.faults.drop_live = {1, 2}
        publisher.publish_all([removed(FIRST), stored(THIRD)])
        wait_for_seq(run, "a", 2)
        assert held(run, FIRST, SECOND, THIRD) == [0, 64, 64]
        assert wait_for(run, trust="exact")["resets"] == {}


def test_ten_thousand_large_batches_pass_the_engines_high_water_mark() -> None:
    padding = "x" * 1800
    with Publisher() as publisher:
        publisher.publish_all(
            batch(events=[vllm_stored(prompt(number, 16)) | {"session_id": padding}]) for number in range(10_000)
        )
        with serving(fleet(instance("a", publisher))) as run:
            wait_for_seq(run, "a", 9_999, timeout_s=30)
            shown = wait_for(run, trust="exact")
            assert shown["blocks"]["gpu"] == 10_000
            assert shown["resets"] == {}
            assert held(run, *(prompt(number, 16) for number in range(0, 10_000, 500))) == [16] * 20


# Holes that stay


def test_without_replay_a_gap_costs_the_worker_what_it_held() -> None:
    with Publisher(replay=False) as publisher, following(publisher) as run:
        publish(run, publisher, stored(FIRST, SECOND))
        assert run.worker("a")["trust"] == "exact"
        publisher.faults.drop_live = {1}
        publisher.publish(removed(FIRST))
        publish(run, publisher, stored(THIRD))
        shown = run.worker("a")
        assert (shown["trust"], shown["gaps"], shown["resets"]) == ("partial", 1, {"gap": 1})
        assert held(run, FIRST, SECOND, THIRD) == [0, 0, 64]
        assert run.metric('kvroute_worker_resets_total{dp_rank="0",instance="a",reason="gap"}') == 1
        assert run.metric('kvroute_worker_trust{dp_rank="0",instance="a",trust="partial"}') == 1
        publish(run, publisher, batch(events=[CLEARED]))
        assert run.worker("a")["trust"] == "exact"
        assert held(run, THIRD) == [0]


def test_a_number_burned_by_a_failed_encode_is_a_gap_that_ends() -> None:
    with Publisher() as publisher, following(publisher) as run:
        publish(run, publisher, stored(FIRST))
        publisher.burn()
        publish(run, publisher, stored(SECOND))
        wait_for(run, resets={"gap": 1}, trust="partial", gaps=1)
        assert held(run, FIRST, SECOND) == [0, 64]
        publish(run, publisher, stored(THIRD))
        assert held(run, THIRD) == [64]
        asked = len(publisher.requests)
        publisher.wait_for_requests(asked + 2)  # two idle probes later
        assert wait_for(run, trust="partial")["resets"] == {"gap": 1}


# Late joiners


def test_a_late_joiner_with_the_whole_history_is_exact() -> None:
    with Publisher() as publisher:
        publisher.publish_all([stored(FIRST, SECOND), removed(FIRST), stored(THIRD)])
        with serving(fleet(instance("a", publisher))) as run:
            wait_for_seq(run, "a", 2)
            assert held(run, FIRST, SECOND, THIRD) == [0, 64, 64]
            assert wait_for(run, trust="exact", gaps=0)["resets"] == {}


def test_a_late_joiner_with_a_part_of_the_history_knows_so() -> None:
    with Publisher(buffer_steps=2) as publisher:
        publisher.publish_all([stored(FIRST), stored(SECOND), stored(THIRD)])
        with serving(fleet(instance("a", publisher))) as run:
            wait_for_seq(run, "a", 2)
            assert held(run, FIRST, SECOND, THIRD) == [0, 64, 64]
            assert run.worker("a")["trust"] == "partial"
            assert run.route(THIRD, model="m")["trust"] == "partial"


def test_a_late_joiner_without_replay_is_partial_until_a_clear() -> None:
    with Publisher(replay=False) as publisher:
        publisher.publish(stored(FIRST))
        with following(publisher) as run:
            publish(run, publisher, stored(SECOND))
            assert run.worker("a")["trust"] == "partial"
            assert held(run, FIRST, SECOND) == [0, 64]
            publish(run, publisher, batch(events=[CLEARED, vllm_stored(THIRD)]))
            assert run.worker("a")["trust"] == "exact"
            assert held(run, SECOND, THIRD) == [0, 64]


# New processes


@pytest.mark.parametrize("replay", [True, False])
def test_a_restart_in_place_leaves_no_dead_block(replay: bool) -> None:
    with Publisher(replay=replay) as publisher, following(publisher) as run:
        for tokens in (FIRST, SECOND):
            publish(run, publisher, stored(tokens))
        publisher.start_over()
        publisher.publish(stored(THIRD))
        wait_for(run, resets={"restart": 1}, seq=0, trust="exact")
        assert held(run, FIRST, SECOND, THIRD) == [0, 0, 64]
        assert run.metric('kvroute_worker_resets_total{dp_rank="0",instance="a",reason="restart"}') == 1


@pytest.mark.parametrize("fingerprint", ["changed", "unknown"])
def test_a_restart_hidden_behind_a_reconnect_leaves_no_dead_block(fingerprint: str) -> None:
    with Publisher() as publisher, FakeEngine(EngineKind.VLLM) as server, following(publisher, server) as run:
        publish(run, publisher, stored(FIRST))
        wait_until(lambda: run.instance("a")["version"] is not None, 5)
        if fingerprint == "changed":
            server.restart()
        else:
            server.spoil(HTML, "/metrics")
        publisher.restart(missed=[stored(SECOND), removed(SECOND)])
        publisher.wait_for_subscriber()
        publisher.publish(stored(THIRD))  # its number is ahead of ours, as if nothing but a gap had happened
        wait_for(run, seq=2, trust="exact")
        assert held(run, FIRST, SECOND, THIRD) == [0, 0, 64]
        assert sum(run.worker("a")["resets"].values()) == 1


def test_a_restart_that_nothing_follows_is_seen_by_its_fingerprint() -> None:
    with Publisher() as publisher, FakeEngine(EngineKind.VLLM) as server, following(publisher, server) as run:
        publish(run, publisher, stored(FIRST))
        wait_until(lambda: run.instance("a")["version"] is not None, 5)
        server.restart()
        publisher.restart()
        wait_until(lambda: held(run, FIRST) == [0], 5, lambda: run.worker("a"))
        wait_for(run, trust="exact")


def test_a_lost_connection_to_the_same_process_costs_nothing() -> None:
    with Publisher() as publisher, FakeEngine(EngineKind.VLLM) as server, following(publisher, server) as run:
        publish(run, publisher, stored(FIRST, SECOND))
        wait_until(lambda: server.calls["/metrics"] > 3, 5)
        publisher.stop()
        publisher.faults.drop_live = {1}
        publisher.publish(removed(FIRST))
        publisher.start()
        publisher.wait_for_subscriber()
        publish(run, publisher, stored(THIRD))
        shown = wait_for(run, trust="exact")
        assert shown["resets"] == {}
        assert held(run, FIRST, SECOND, THIRD) == [0, 64, 64]


# Everything at once


@pytest.mark.no_cover
@pytest.mark.parametrize("seed", range(8))
def test_after_any_series_of_losses_the_index_holds_the_truth_or_less(seed: int) -> None:
    random = Random(seed)
    with Publisher(replay=seed % 4 != 3) as publisher, following(publisher) as run:
        truth: set[int] = set()
        for _ in range(120):
            truth = _something_happens(random, publisher, truth)
        publisher.faults.drop_live.clear()
        last = prompt(1000)  # its number alone does not tell: one from before a restart may be the same
        publish_last = publisher.publish(stored(last))
        wait_until(lambda: held(run, last) == [64] and seq_of(run, "a") == publish_last, 10, lambda: run.worker("a"))
        shown, everything = run.worker("a"), [prompt(number) for number in range(30)]
        wanted = [64 if number in truth else 0 for number in range(30)]
        got = held(run, *everything)
        assert all(claimed <= true for claimed, true in zip(got, wanted, strict=True)), (got, wanted, shown)
        if shown["trust"] == "exact":
            assert got == wanted, shown


def _something_happens(random: Random, publisher: Publisher, truth: set[int]) -> set[int]:
    """One step of an engine's life; returns the prompts it holds afterwards."""
    chance = random.random()
    if chance < 0.02:
        publisher.start_over()
        truth = set()
    elif chance < 0.03:
        publisher.restart()
        publisher.wait_for_subscriber()
        truth = set()
    elif chance < 0.33:
        publisher.faults.drop_live = {publisher.next_seq}
        publisher.faults.lose_in_replay[publisher.next_seq] = random.choice((0, 1))
    number = random.randrange(1, 30)
    publisher.publish(removed(prompt(number)) if number in truth else stored(prompt(number)))
    return truth ^ {number}
