"""Instances shared between replicas: whose word counts, and that nothing is lost with the store or while it is away."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from index.worker import Worker
from store.keys import worker_keys
from tests.support.engine_events import prompt, vllm_stored
from tests.support.fleet import fleet, instance, matched
from tests.support.publisher import Publisher, batch
from tests.support.redis_server import RedisServer
from tests.support.service import Running, serving, wait_until

Serve = Callable[..., Running]
SOON = {"poll_s": 0.05, "call_timeout_s": 2.0, "load_timeout_s": 2.0}


@pytest.fixture
def serve(server: RedisServer, stack: ExitStack) -> Serve:
    """Another replica with these instances in its file, until the test ends."""
    return lambda *instances: stack.enter_context(served(server, *instances))


def served(server: RedisServer, *instances: dict[str, Any]) -> Any:
    return serving(fleet(*instances, state=server.url, state_store=SOON))


def names(running: Running) -> set[str]:
    return {one["id"] for one in running.http.get("/instances").json()["instances"]}


def has(running: Running, *expected: str) -> None:
    wait_until(lambda: names(running) == set(expected), 10, lambda: (names(running), expected))


def stays(running: Running, *expected: str) -> None:
    """Also after the changes were read a few times."""
    end = time.monotonic() + 5 * SOON["poll_s"]
    while time.monotonic() < end:
        assert names(running) == set(expected)


def post(running: Running, own: dict[str, Any]) -> None:
    running.http.post("/instances", json=own).raise_for_status()


def test_what_was_added_over_http_outlives_the_process(server: RedisServer) -> None:
    with served(server, instance("file")) as running:
        post(running, instance("added"))
    with served(server, instance("file")) as running:
        has(running, "file", "added")
        running.http.post("/instances/added/drain").raise_for_status()
    with served(server, instance("file")) as running:
        has(running, "file", "added")
        wait_until(lambda: running.instance("added")["draining"], 10)


def test_what_was_taken_out_of_the_file_stays_out(server: RedisServer) -> None:
    with served(server, instance("kept"), instance("taken")) as running:
        has(running, "kept", "taken")
        post(running, instance("added"))
    with served(server, instance("kept")) as running:
        has(running, "kept", "added")
        stays(running, "kept", "added")
        post(running, instance("taken"))
        has(running, "kept", "added", "taken")
    with served(server, instance("kept")) as running:
        has(running, "kept", "added", "taken")


def test_the_own_file_wins_over_what_is_registered(serve: Serve) -> None:
    own = instance("one")
    first = serve({**own, "weight": 2.0})
    second = serve({**own, "weight": 3.0})
    post(second, instance("added"))
    has(first, "one", "added")
    assert (first.instance("one")["weight"], second.instance("one")["weight"]) == (2.0, 3.0)


def test_a_file_s_instance_that_is_deleted_over_http_goes_everywhere(serve: Serve) -> None:
    own = instance("one")
    first, second = serve(own), serve(own)
    first.http.delete("/instances/one").raise_for_status()
    has(second)


def test_a_deleted_instance_leaves_nothing_in_the_store(serve: Serve, server: RedisServer, stack: ExitStack) -> None:
    publisher = stack.enter_context(Publisher())
    own = instance("one", publisher)
    replicas = [serve(own) for _ in range(3)]
    publisher.wait_for_subscriber(count=3)
    publisher.publish(batch(None, [vllm_stored(prompt(1))]))
    keys = worker_keys(Worker("one", 0))
    wait_until(lambda: bool(server.command("EXISTS", *keys)), 10)
    replicas[0].http.delete("/instances/one").raise_for_status()
    for number in range(2, 30):
        publisher.publish(batch(None, [vllm_stored(prompt(number))]))
    for replica in replicas:
        has(replica)
    wait_until(lambda: not server.command("EXISTS", *keys), 10)
    post(replicas[1], own)
    for replica in replicas:
        has(replica, "one")
        wait_until(lambda one=replica: matched(one, prompt(29)) == {"one": 64}, 10)  # type: ignore[misc]
    wait_until(lambda: bool(server.command("EXISTS", *keys)), 10)


def test_a_registry_that_is_lost_is_put_together_again(serve: Serve, server: RedisServer) -> None:
    first, second = serve(instance("file")), serve()
    post(first, instance("a"))
    post(second, instance("b"))
    has(second, "a", "b")
    has(first, "file", "a", "b")
    server.command("FLUSHALL")
    post(second, instance("c"))
    has(first, "file", "a", "b", "c")
    wait_until(lambda: registered(server) == {"file", "a", "b", "c"}, 10)
    has(serve(), "a", "b", "c")


def test_a_store_that_comes_back_empty_takes_no_instance_away(serve: Serve, server: RedisServer) -> None:
    first, second = serve(instance("file")), serve()
    post(first, instance("a"))
    has(second, "a")
    server.kill()
    wait_until(lambda: first.metric("kvroute_state_errors_total") > 0, 10)
    wait_until(lambda: second.metric("kvroute_state_errors_total") > 0, 10)
    server.restart(empty=True)
    wait_until(lambda: registered(server) == {"file", "a"}, 15)
    post(second, instance("b"))
    has(first, "file", "a", "b")
    assert names(second) == {"a", "b"}


def test_what_is_changed_while_the_store_is_away_is_told_later(serve: Serve, server: RedisServer) -> None:
    server.pause()
    first, second = serve(instance("file")), serve()
    for running in (first, second):
        wait_until(lambda one=running: one.http.get("/readyz").status_code == 200, 10)  # type: ignore[misc]
    post(first, instance("a"))
    post(second, instance("b"))
    second.http.post("/instances/b/drain").raise_for_status()
    server.resume()
    has(second, "a", "b")
    has(first, "file", "a", "b")
    wait_until(lambda: bool(first.instance("b")["draining"]), 10)
    assert second.instance("b")["draining"]


def test_a_replica_that_missed_changes_reads_everything_again(serve: Serve, server: RedisServer) -> None:
    first, second = serve(), serve()
    for name in ("a", "b"):
        post(first, instance(name))
    has(second, "a", "b")
    server.pause()  # nobody reads meanwhile
    first.http.delete("/instances/a")
    server.resume()
    wait_until(lambda: registered(server) == {"b"}, 15)
    server.command("XTRIM", "kvroute:{registry}:changes", "MAXLEN", "1")
    post(first, instance("c"))
    has(second, "b", "c")
    post(second, instance("d"))
    has(first, "b", "c", "d")


def test_the_same_instance_added_everywhere_is_one_instance(serve: Serve) -> None:
    own = instance("one")
    first, second = serve(), serve()
    post(first, own)
    has(second, "one")
    assert second.http.post("/instances", json=own).status_code == 200
    assert second.http.post("/instances", json={**own, "weight": 2.0}).status_code == 409


def test_records_that_this_release_cannot_use_are_left_out(serve: Serve, server: RedisServer) -> None:
    first = serve()
    post(first, instance("a"))
    record = server.command("HGET", "kvroute:{registry}:instances", "i:a")
    server.command("HSET", "kvroute:{registry}:instances", "i:b", record.replace(b'"weight"', b'"heaviness"'))
    server.command("HSET", "kvroute:{registry}:instances", "i:c", b"0not json")
    server.command("HSET", "kvroute:{registry}:instances", "i:d", record)
    second = serve()
    has(second, "a")
    stays(second, "a")


def registered(server: RedisServer) -> set[str]:
    fields = server.command("HKEYS", "kvroute:{registry}:instances")
    return {field[2:].decode() for field in fields if field.startswith(b"i:")}
