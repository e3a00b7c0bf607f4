"""What a router makes of the state that a former one stored, when the engine or the settings changed meanwhile."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec import msgpack

from index.block_hash import HashIdentity
from index.worker import EngineKind, Worker
from store.format import SNAPSHOT_FIELDS, SnapshotFields, Unreadable, pack_snapshot, unpack_snapshot
from store.keys import worker_keys
from tests.support.engine_events import CLEARED, DEFAULT, prompt, sglang_stored, vllm_removed, vllm_stored
from tests.support.fake_engine import FakeEngine
from tests.support.fleet import fleet, instance, matched, wait_for_seq
from tests.support.publisher import Publisher, batch
from tests.support.redis_server import RedisServer
from tests.support.service import Running, serving, wait_until

KEYS = worker_keys(Worker("one", 0))
LogLines = Callable[[], list[dict[str, object]]]


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def server(redis_server: RedisServer) -> RedisServer:
    redis_server.command("FLUSHALL")
    return redis_server


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    with Publisher() as publisher:
        yield publisher


def settings(server: RedisServer, *instances: dict[str, Any], **sections: Any) -> dict[str, Any]:
    return fleet(*instances, state=server.url, state_store={"poll_s": 0.05}, **sections)


def run(server: RedisServer, own: dict[str, Any], publisher: Publisher, *batches: bytes, **sections: Any) -> None:
    """A router's life: the engine publishes, everything is applied and stored."""
    with serving(settings(server, own, **sections)) as running:
        publisher.wait_for_subscriber()
        publisher.publish_all(batches)
        wait_for_seq(running, own["id"], publisher.next_seq - 1)
    assert server.command("EXISTS", KEYS.snapshot)


def stored(number: int, identity: HashIdentity = DEFAULT) -> bytes:
    return batch(None, [vllm_stored(prompt(number), identity)])


def stored_number(server: RedisServer) -> int:
    """The last batch of the worker that is stored, in its log or as a snapshot; -1: none."""
    snapshot = server.command("HGET", KEYS.snapshot, "s")
    entries = server.command("XREVRANGE", KEYS.log, "+", "-", "COUNT", "1")
    assert isinstance(entries, list)
    found = [snapshot, *(entry[0].rpartition(b"-")[2] for entry in entries)]
    return max((int(one) for one in found if isinstance(one, bytes)), default=-1)


def is_live(running: Running) -> None:
    wait_until(lambda: running.worker("one")["state"] == "live", 10)


# The engine


def test_a_warm_router_asks_only_for_what_came_since(server: RedisServer, publisher: Publisher) -> None:
    own = instance("one", publisher)
    run(server, own, publisher, stored(1), stored(2))
    publisher.publish(stored(3))
    publisher.requests.clear()
    with serving(settings(server, own)) as running:
        wait_for_seq(running, "one", 2)
        assert [matched(running, prompt(number))["one"] for number in (1, 2, 3)] == [64, 64, 64]
        worker = running.worker("one")
        assert (worker["trust"], worker["resets"], worker["hash"]["status"]) == ("exact", {}, "verified")
        assert worker["replayed_batches"] == 1
    assert min(publisher.requests) == 1  # the last one that was applied proves the process


@pytest.mark.parametrize("late", [False, True])
def test_a_block_size_that_was_certain_is_after_a_warm_start(
    server: RedisServer, publisher: Publisher, late: bool
) -> None:
    """Stored with the snapshot, or in the log after it. A larger block would else be taken for the true size."""
    own = instance("one", publisher)
    single = vllm_stored(prompt(2)[:16])
    first = [batch(None, [single])] if late else [stored(1)]
    with serving(settings(server, own)) as running:
        publisher.wait_for_subscriber()
        publisher.publish_all(first)
        wait_until(lambda: bool(server.command("EXISTS", KEYS.snapshot)), 10)
        if late:
            publisher.publish(stored(1))
            wait_until(lambda: server.command("EXISTS", KEYS.log) == 1, 10)
    with serving(settings(server, own)) as running:
        wait_for_seq(running, "one", publisher.next_seq - 1)
        larger = vllm_stored(prompt(3))
        publisher.publish(batch(None, [larger | {"block_hashes": larger["block_hashes"][:1], "block_size": 64}]))
        wait_for_seq(running, "one", publisher.next_seq - 1)
        worker = running.worker("one")
        assert (worker["block_size"], worker["wire_errors"]) == (16, {"block_size": 1})
        assert matched(running, prompt(1))["one"] == 64


def test_a_fingerprint_proves_the_process_without_any_replay(server: RedisServer) -> None:
    with Publisher(replay=False) as publisher, FakeEngine(EngineKind.VLLM) as engine:
        own = instance("one", publisher, engine)
        with serving(settings(server, own)) as running:
            publisher.wait_for_subscriber()
            wait_until(lambda: engine.calls["/metrics"] > 2, 10)
            publisher.publish(stored(1))
            wait_until(lambda: bool(server.command("EXISTS", KEYS.snapshot)), 10)
            publisher.publish(stored(3))
            wait_for_seq(running, "one", 1)
            wait_until(lambda: server.command("HGET", KEYS.snapshot, "f") != b"", 10)
        with serving(settings(server, own)) as running:
            publisher.wait_for_subscriber()
            wait_until(lambda: matched(running, prompt(1))["one"] == 64, 10)
            publisher.publish(stored(2))
            wait_for_seq(running, "one", 2)
            assert running.worker("one")["resets"] == {}
            assert running.worker("one")["trust"] == "exact"
            assert matched(running, prompt(2))["one"] == 64


@pytest.mark.parametrize("told", [True, False])
def test_of_an_engine_that_was_restarted_meanwhile_no_dead_block_is_left(
    server: RedisServer, publisher: Publisher, told: bool
) -> None:
    with FakeEngine(EngineKind.VLLM) as engine:
        own = instance("one", publisher, engine if told else None)
        run(server, own, publisher, stored(1), stored(2))
        engine.restart()
        publisher.restart(missed=[stored(2), stored(3), stored(4)])
        with serving(settings(server, own)) as running:
            seen = set()
            while running.worker("one")["seq"] != 2:
                seen.add(matched(running, prompt(1))["one"])
            assert seen <= {0}
            running.wait_for_trust("one", "exact")
            assert [matched(running, prompt(number))["one"] for number in (1, 2, 3, 4)] == [0, 64, 64, 64]
        with serving(settings(server, own)) as running:
            wait_until(lambda: matched(running, prompt(4))["one"] == 64, 10)
            assert matched(running, prompt(1))["one"] == 0
            assert running.worker("one")["resets"] == {}


def test_while_the_engine_cannot_be_reached_nothing_is_claimed(server: RedisServer, publisher: Publisher) -> None:
    own = instance("one", publisher)
    run(server, own, publisher, stored(1))
    publisher.stop()
    with serving(settings(server, own)) as running:
        wait_until(lambda: running.worker("one")["blocks"]["gpu"] == 4, 10)
        answer = running.candidates(prompt(1), model="m")["one"]
        assert (answer["matched_tokens"], answer["trust"]) == (0, "none")
        publisher.start()
        wait_until(lambda: matched(running, prompt(1))["one"] == 64, 10)
        running.wait_for_trust("one", "exact")


def test_a_gap_that_the_engine_cannot_replay_any_more_costs_trust(server: RedisServer) -> None:
    with Publisher(buffer_steps=2) as publisher:
        own = instance("one", publisher)
        run(server, own, publisher, stored(1))
        publisher.publish_all([stored(2), stored(3), stored(4)])
        with serving(settings(server, own)) as running:
            wait_for_seq(running, "one", 3)
            assert [matched(running, prompt(number))["one"] for number in (1, 2, 3, 4)] == [0, 0, 64, 64]
            assert running.worker("one")["trust"] == "partial"
        with serving(settings(server, own)) as running:
            wait_until(lambda: matched(running, prompt(4))["one"] == 64, 10)
            assert running.worker("one")["trust"] == "partial"
            publisher.publish(batch(None, [CLEARED]))
            wait_for_seq(running, "one", 4)
            assert running.worker("one")["trust"] == "exact"


def test_after_a_gap_that_nothing_fills_the_older_stored_state_never_comes_back(server: RedisServer) -> None:
    with Publisher(buffer_steps=2) as publisher:
        own = instance("one", publisher)
        with serving(settings(server, own)) as running:
            publisher.wait_for_subscriber()
            publisher.publish_all([stored(1), stored(2)])
            wait_for_seq(running, "one", 1)
            running.wait_for_trust("one", "exact")
            wait_until(lambda: stored_number(server) == 1, 10)
            publisher.faults.drop_live = {2, 3, 4, 5}
            publisher.publish_all(stored(number) for number in range(3, 8))
            wait_for_seq(running, "one", 6)
            seen = set()
            end = time.monotonic() + 3.0
            while time.monotonic() < end:
                worker = running.worker("one")
                seen.add((worker["seq"], worker["trust"], tuple(worker["resets"].items())))
            assert seen == {(6, "partial", (("gap", 1),))}
            wait_until(lambda: stored_number(server) == 6, 30)
        with serving(settings(server, own)) as running:
            wait_until(lambda: running.worker("one")["seq"] == 6, 10)
            running.wait_for_trust("one", "partial")
            assert [matched(running, prompt(number))["one"] for number in (1, 7)] == [0, 64]


def test_of_an_engine_that_sleeps_nothing_stored_comes_back(server: RedisServer, publisher: Publisher) -> None:
    with FakeEngine(EngineKind.VLLM) as engine:
        own = instance("one", publisher, engine)
        run(server, own, publisher, stored(1))
        engine.asleep = True
        with serving(settings(server, own)) as running:
            wait_until(lambda: running.worker("one")["asleep"] and running.worker("one")["seq"] == 0, 10)
            wait_until(lambda: running.worker("one")["blocks"]["gpu"] == 0, 10)
            wait_until(lambda: not server.command("EXISTS", KEYS.snapshot), 10)
            engine.asleep = False
            wait_until(lambda: not running.worker("one")["asleep"], 10)
            assert matched(running, prompt(1))["one"] == 0


def test_an_engine_that_falls_asleep_leaves_nothing_stored(server: RedisServer, publisher: Publisher) -> None:
    with FakeEngine(EngineKind.VLLM) as engine:
        own = instance("one", publisher, engine)
        with serving(settings(server, own)) as running:
            publisher.wait_for_subscriber()
            publisher.publish(stored(1))
            wait_until(lambda: bool(server.command("EXISTS", KEYS.snapshot)), 10)
            engine.asleep = True
            wait_until(lambda: not server.command("EXISTS", KEYS.snapshot), 10)
            engine.asleep = False
            wait_until(lambda: not running.worker("one")["asleep"], 10)
            publisher.publish(stored(2))
            wait_until(lambda: bool(server.command("EXISTS", KEYS.snapshot)), 10)
        with serving(settings(server, own)) as running:
            wait_until(lambda: matched(running, prompt(2))["one"] == 64, 10)
            assert matched(running, prompt(1))["one"] == 0


# Settings


def test_a_fleet_that_was_seeded_anew_is_not_measured_by_what_was_stored(
    server: RedisServer, publisher: Publisher
) -> None:
    own = instance("one", publisher)
    run(server, own, publisher, stored(1, HashIdentity("sha256", "42")))
    publisher.restart(missed=[stored(2, HashIdentity("sha256", "0"))])
    with serving(settings(server, own)) as running:
        wait_for_seq(running, "one", 0)
        worker = running.worker("one")
        assert (worker["state"], worker["hash"]["status"], worker["hash"]["seed"]) == ("live", "verified", "0")
        assert [matched(running, prompt(number))["one"] for number in (1, 2)] == [0, 64]


def test_of_an_engine_that_announced_a_wrong_block_nothing_is_left_stored(
    server: RedisServer, publisher: Publisher
) -> None:
    own, checked = instance("one", publisher), {"hash": {"verify": "all"}}
    wrong = vllm_stored(prompt(2))
    wrong["block_hashes"][2] ^= 1
    run(server, own, publisher, stored(1), **checked)
    for _ in range(2):  # the second router meets it in the replay
        with serving(settings(server, own, **checked)) as running:
            publisher.wait_for_subscriber()
            if publisher.next_seq == 1:
                assert matched(running, prompt(1)) == {"one": 64}
                publisher.publish(batch(None, [wrong]))
            running.wait_for_state("one", "refused")
            wait_until(lambda: not server.command("EXISTS", KEYS.snapshot, KEYS.log), 5, lambda: everything(server))
            assert matched(running, prompt(1)) == {"one": 0}


def test_what_was_stored_under_another_identity_is_not_used(
    server: RedisServer, publisher: Publisher, log_lines: LogLines
) -> None:
    own = instance("one", publisher)
    run(server, own, publisher, stored(1, HashIdentity("sha256", "42")))
    with serving(settings(server, own, hash={"algorithm": "sha256", "seed": "0"})) as running:
        wait_until(lambda: running.worker("one")["state"] == "refused", 10)
        assert matched(running, prompt(1))["one"] == 0
    assert [line["reason"] for line in log_lines() if line["event"] == "stored state not used"] == [
        "its hash identity is not the expected one any more"
    ]


def test_a_deviating_engine_that_was_let_in_is_refused_once_that_is_enforced(
    server: RedisServer, publisher: Publisher
) -> None:
    own = instance("one", publisher)
    expected: dict[str, Any] = {"algorithm": "sha256", "seed": "0"}
    run(server, own, publisher, stored(1, HashIdentity("sha256", "42")), hash={**expected, "policy": "translate"})
    with serving(settings(server, own, hash={**expected, "policy": "translate"})) as running:
        wait_until(lambda: matched(running, prompt(1))["one"] == 64, 10)
        assert running.worker("one")["resets"] == {}
    with serving(settings(server, own, hash=expected)) as running:
        wait_until(lambda: running.worker("one")["state"] == "refused", 10)
        assert matched(running, prompt(1))["one"] == 0


def test_an_engine_that_is_the_expected_one_now_is_verified(server: RedisServer, publisher: Publisher) -> None:
    own = instance("one", publisher)
    other = HashIdentity("sha256", "42")
    run(server, own, publisher, stored(1, other), hash={"algorithm": "sha256", "seed": "0", "policy": "translate"})
    with serving(settings(server, own, hash={"algorithm": "sha256", "seed": "42"})) as running:
        wait_until(lambda: matched(running, prompt(1))["one"] == 64, 10)
        assert running.worker("one")["hash"]["status"] == "verified"


def test_an_instance_of_another_kind_under_the_same_name_starts_cold(server: RedisServer, publisher: Publisher) -> None:
    run(server, instance("one", publisher), publisher, stored(1))
    publisher.restart(missed=[batch(None, [sglang_stored(prompt(2))])])
    with serving(settings(server, instance("one", publisher, engine="sglang"))) as running:
        wait_until(lambda: matched(running, prompt(2))["one"] == 64, 10)


# What is in the store


def damage_bytes(server: RedisServer) -> None:
    body = bytearray(server.command("HGET", KEYS.snapshot, "b"))
    body[-1] ^= 1
    server.command("HSET", KEYS.snapshot, "b", bytes(body))


def former_version(server: RedisServer) -> None:
    server.command("HSET", KEYS.snapshot, "v", "0")


def another_body(server: RedisServer) -> None:
    """Bytes that pass the store's check, written by something else."""
    fields = SnapshotFields(*server.command("HMGET", KEYS.snapshot, *SNAPSHOT_FIELDS))
    snapshot = unpack_snapshot(Worker("one", 0), fields)
    assert not isinstance(snapshot, Unreadable)
    packed = pack_snapshot(snapshot._replace(body=b"\x81\xa5trust\xa5exact"))
    for name, value in zip(SNAPSHOT_FIELDS, packed, strict=True):
        server.command("HSET", KEYS.snapshot, name, value)


def another_type(server: RedisServer) -> None:
    server.command("DEL", KEYS.snapshot)
    server.command("SET", KEYS.snapshot, "hello")


def no_body(server: RedisServer) -> None:
    server.command("HDEL", KEYS.snapshot, "b")


@pytest.mark.parametrize("spoil", [damage_bytes, former_version, another_body, another_type, no_body])
def test_what_cannot_be_read_is_ignored_with_one_line_and_replaced(
    server: RedisServer, publisher: Publisher, log_lines: LogLines, spoil: Callable[[RedisServer], None]
) -> None:
    own = instance("one", publisher)
    run(server, own, publisher, stored(1), stored(2))
    spoil(server)
    with serving(settings(server, own)) as running:
        wait_until(lambda: matched(running, prompt(2))["one"] == 64, 10)
        running.wait_for_trust("one", "exact")
    assert warnings(log_lines) == 1
    with serving(settings(server, own)) as running:
        wait_until(lambda: matched(running, prompt(2))["one"] == 64, 10)
        assert running.worker("one")["replayed_batches"] == 0
    assert warnings(log_lines) == 1


def test_what_a_later_release_stored_is_left_alone_while_it_is_alive(
    server: RedisServer, publisher: Publisher, log_lines: LogLines
) -> None:
    own = instance("one", publisher)
    run(server, own, publisher, stored(1))
    server.command("HSET", KEYS.snapshot, "v", "999")
    with serving(settings(server, own)) as running:
        wait_until(lambda: matched(running, prompt(1))["one"] == 64, 10)
        for number in range(2, 12):
            publisher.publish(stored(number))
            wait_for_seq(running, "one", number - 1)
        wait_until(
            lambda: warnings(log_lines) == 2, 10
        )  # when it starts, and when it is told that a better one is there
    assert warnings(log_lines) == 2
    assert server.command("HGET", KEYS.snapshot, "v") == b"999"


def warnings(log_lines: LogLines) -> int:
    told = [line for line in log_lines() if line["event"] in ("stored snapshot ignored", "stored state not used")]
    assert all(line["level"] == "warning" for line in told)
    return len(told)


def test_a_damaged_entry_costs_only_what_follows_it_and_is_replaced(server: RedisServer, publisher: Publisher) -> None:
    own = instance("one", publisher)
    with serving(settings(server, own)) as running:
        publisher.wait_for_subscriber()
        for number in range(1, 5):
            publisher.publish(stored(number))
            wait_for_seq(running, "one", number - 1)
            wait_until(lambda n=number: tip(server) == n - 1, 10)  # type: ignore[misc]
    _first, *rest = server.command("XRANGE", KEYS.log, "-", "+")
    assert len(rest) == 2
    server.command("XDEL", KEYS.log, rest[0][0])
    with serving(settings(server, own)) as running:
        wait_for_seq(running, "one", 3)
        assert running.worker("one")["resets"] == {}
        assert running.worker("one")["replayed_batches"] == 2
    with serving(settings(server, own)) as running:
        wait_until(lambda: matched(running, prompt(4))["one"] == 64, 10)
        assert running.worker("one")["replayed_batches"] == 0


def tip(server: RedisServer) -> int:
    """The last number that is stored."""
    last = server.command("XREVRANGE", KEYS.log, "+", "-", "COUNT", "1")
    return int(last[0][0].rpartition(b"-")[2]) if last else int(server.command("HGET", KEYS.snapshot, "s") or -1)


def everything(server: RedisServer) -> bytes:
    """All that is in Redis, as it lies there."""
    parts: list[bytes] = []
    for key in server.command("KEYS", "*"):
        kind = server.command("TYPE", key)
        command = {b"hash": ("HGETALL", key), b"stream": ("XRANGE", key, "-", "+")}[kind]
        parts += [key, *flat(server.command(*command))]
    return b"\0".join(parts)


def flat(value: Any) -> Iterator[bytes]:
    if isinstance(value, dict):
        value = [part for pair in value.items() for part in pair]
    if isinstance(value, list | tuple):
        for part in value:
            yield from flat(part)
    else:
        yield value if isinstance(value, bytes) else str(value).encode()


def forms(tokens: list[int]) -> list[bytes]:
    """A run of tokens in any form it could be written in."""
    return [
        struct.pack(f"<{len(tokens)}I", *tokens),
        struct.pack(f">{len(tokens)}I", *tokens),
        struct.pack(f"<{len(tokens)}q", *tokens),
        b"".join(msgpack.encode(token) for token in tokens),
        json.dumps(tokens).encode()[1:-1],
        json.dumps(tokens, separators=(",", ":")).encode()[1:-1],
    ]


def test_no_tokens_of_vllm_prompts_are_stored(server: RedisServer, publisher: Publisher) -> None:
    first, parentless = vllm_stored(prompt(7)), vllm_stored(prompt(8), skip=2)
    own = instance("one", publisher)
    run(server, own, publisher, batch(None, [first]), batch(None, [parentless]), batch(None, [vllm_removed(first)]))
    run(server, own, publisher, stored(9))
    held = everything(server)
    assert b"one" in held
    for number in (7, 8, 9):
        for start in range(62):
            assert not any(form in held for form in forms(prompt(number)[start : start + 2])), (number, start)


def test_sglang_tokens_are_stored_unless_that_is_switched_off(server: RedisServer, publisher: Publisher) -> None:
    own = instance("one", publisher, engine="sglang")
    run(server, own, publisher, batch(None, [sglang_stored(prompt(7))]), batch(None, [sglang_stored(prompt(8))]))
    assert forms(prompt(7)[5:15])[0] in everything(server)
    with serving(settings(server, own, state_tokens=False)) as running:
        wait_until(lambda: matched(running, prompt(8))["one"] == 64, 10)
        wait_until(lambda: not server.command("EXISTS", *KEYS), 10)
        publisher.publish(batch(None, [sglang_stored(prompt(9))]))
        wait_for_seq(running, "one", 2)
    assert not server.command("EXISTS", *KEYS)
    held = everything(server)
    assert b"one" in held
    assert not any(form in held for number in (7, 8, 9) for form in forms(prompt(number)[5:8]))


# Adapters


def test_an_adapter_that_was_loaded_from_another_path_meanwhile_has_no_old_blocks(
    server: RedisServer, publisher: Publisher
) -> None:
    with FakeEngine(EngineKind.VLLM, adapters={"sql": "/v1"}) as engine:
        own = instance("one", publisher, engine)
        with serving(settings(server, own)) as running:
            knows_path(running, "/v1")
            publisher.wait_for_subscriber()
            publisher.publish(batch(None, [vllm_stored(prompt(1), lora=("sql", "/v1"))]))
            publisher.publish(stored(2))
            wait_for_seq(running, "one", 1)
            assert matched(running, prompt(1), lora="sql") == {"one": 64}
        engine.adapters = {"sql": "/v2"}
        with serving(settings(server, own)) as running:
            wait_until(lambda: matched(running, prompt(2))["one"] == 64, 10)
            knows_path(running, "/v2")
            assert running.worker("one")["resets"] == {}
            assert matched(running, prompt(1), lora="sql") == {"one": 0}
            engine.adapters = {"sql": "/v1"}
            knows_path(running, "/v1")
            assert matched(running, prompt(1), lora="sql") == {"one": 64}


def test_blocks_filed_before_their_path_was_known_are_stored_anew_once_it_is(
    server: RedisServer, publisher: Publisher
) -> None:
    with FakeEngine(EngineKind.VLLM) as engine:
        own = instance("one", publisher, engine)
        with serving(settings(server, own)) as running:
            publisher.wait_for_subscriber()
            publisher.publish(batch(None, [vllm_stored(prompt(1), lora=("sql", "/v1"))]))
            publisher.publish(stored(2))
            wait_until(lambda: tip(server) == 1, 10)
            engine.adapters = {"sql": "/v1"}
            knows_path(running, "/v1")
            wait_until(lambda: matched(running, prompt(1), lora="sql") == {"one": 64}, 10)
            wait_for_seq(running, "one", 1)
        with serving(settings(server, own)) as running:
            knows_path(running, "/v1")
            wait_until(lambda: matched(running, prompt(1), lora="sql") == {"one": 64}, 10)
            assert running.worker("one")["resets"] == {}


def knows_path(running: Running, path: str) -> None:
    wait_until(lambda: running.instance("one")["adapters"] == {"sql": path}, 10)
