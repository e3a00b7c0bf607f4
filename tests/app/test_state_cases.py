"""The cases of `tests/golden/cases.json` about Redis, with a real one; what is stored afterwards is right, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from index.worker import Worker
from store.keys import worker_keys
from tests.app.case_player import CasePlayer
from tests.app.case_world import Step, Surroundings
from tests.app.test_cases import CASES, meets
from tests.support.redis_server import RedisServer
from tests.support.service import serving, wait_until

KEYS = worker_keys(Worker("A", 0))
ROUTE_S = 0.3
"""A route that waited for Redis would take longer: calls to it are limited to two seconds."""


def surroundings(server: RedisServer) -> Surroundings:
    return Surroundings(sections={"state": server.url, "state_store": {"poll_s": 0.05, "call_timeout_s": 2.0}})


def as_told(server: RedisServer, step: Step) -> None:
    match step:
        case {"op": "fault", "what": "redis_hang"}:
            server.pause()
        case {"op": "fault_end", "what": "redis_hang"}:
            server.resume()
        case {"op": "fault", "what": "redis_flushed"} | {"op": "router_restart", "redis": "lost"}:
            server.command("FLUSHALL")
        case {"op": "fault", "what": "redis_key_lost"}:
            wait_until(lambda: server.command("DEL", KEYS.snapshot) == 1, 10)
        case {"op": "router_restart", "redis": "kept"}:
            pass
        case _:
            raise AssertionError(step)


PLAYED = [
    "B22-redis-down-or-slow",
    "B32-hash-over-53-bits",
    "B42-router-restart",
    "B52-redis-eviction-partial",
    "B70-store-remove-race",
]


@pytest.mark.parametrize("case_id", PLAYED)
def test_case_with_redis(server: RedisServer, case_id: str) -> None:
    case = CASES[case_id]
    with CasePlayer(case, surroundings(server), happens=lambda step: as_told(server, step)) as player:
        player.play()
        for label, expected in case["expect"]["routes"].items():
            for answer in player.answers[label]:
                meets(case_id, label, answer, expected)
                assert answer.took_s < ROUTE_S
        holds_after_a_restart(player, case, server)


def holds_after_a_restart(player: CasePlayer, case: dict[str, Any], server: RedisServer) -> None:
    """A router that starts from what is stored answers the last question alike, and replays nothing to do so."""
    instances = [own["id"] for own in case["situation"][0]["instances"]]
    for name in instances:
        seq = player.world.worker(name)["seq"]
        if seq is not None:
            wait_until(lambda n=name, s=seq: stored_seq(server, n) == s, 10)  # type: ignore[misc]
    label, expected = list(case["expect"]["routes"].items())[-1]
    request = player.answers[label][-1].request
    player.do({"op": "router_restart", "redis": "kept"})
    for name in instances:
        wait_until(lambda n=name: player.world.worker(n)["trust"] != "none", 10)  # type: ignore[misc]
    meets(case["id"], label, player.ask(**request), expected)
    assert {player.world.worker(name)["replayed_batches"] for name in instances} == {0}


def stored_seq(server: RedisServer, instance: str) -> int:
    """The last number that is stored of an instance, and joins."""
    keys = worker_keys(Worker(instance, 0))
    last = server.command("XREVRANGE", keys.log, "+", "-", "COUNT", "1")
    return int(last[0][0].rpartition(b"-")[2]) if last else int(server.command("HGET", keys.snapshot, "s") or -1)


def test_a_policy_that_evicts_is_warned_of_at_the_start(
    server: RedisServer, log_lines: Callable[[], list[dict[str, object]]]
) -> None:
    server.command("CONFIG", "SET", "maxmemory", 100_000_000)
    server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    with serving({"state": server.url}):
        wait_until(lambda: any("evict" in str(line["event"]) for line in log_lines()), 10)
