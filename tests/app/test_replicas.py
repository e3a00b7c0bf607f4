"""Several routers as processes on one Redis and the same engines: they know the same, whoever is killed or added."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from tests.support.engine_events import prompt, vllm_stored
from tests.support.fleet import OFTEN, SHORT_WAITS, instance
from tests.support.golden import sglang_stream, vllm_stream
from tests.support.publisher import Publisher, batch
from tests.support.recorded_play import RecordedPlay
from tests.support.redis_server import RedisServer
from tests.support.router_process import RouterProcess
from tests.support.service import free_url, wait_until

ROUNDS = 5
BUFFER = 60
UVICORN = ["-m", "uvicorn", "--workers", "2", "--port", "{port}", "app.main:app"]
Start = Callable[..., RouterProcess]


@pytest.fixture
def start(server: RedisServer, stack: ExitStack) -> Start:
    """Starts a router with these instances in its file; does not wait for it."""

    def started(*instances: dict[str, Any], command: list[str] | None = None) -> RouterProcess:
        settings = {
            "state": server.url,
            "state_store": {"poll_s": 0.05, "load_timeout_s": 1.0},
            "instances": list(instances),
            "listener": SHORT_WAITS,
            "polling": OFTEN,
        }
        return stack.enter_context(RouterProcess(settings, command))

    return started


def ready(*routers: RouterProcess) -> None:
    for router in routers:
        router.wait_until_ready()


def test_three_replicas_answer_alike_while_they_are_killed_and_added(start: Start, stack: ExitStack) -> None:
    draw = random.Random(1)
    plays = [
        RecordedPlay(name, stream, stack.enter_context(Publisher(stream.topic, buffer_steps=BUFFER)))
        for name, stream in (("m0", vllm_stream("sha256")), ("m1", sglang_stream("fuzz_page1")))
    ]
    routers = [start(*(play.settings for play in plays)) for _ in range(3)]
    ready(*routers)
    asked = 0
    for _ in range(ROUNDS):
        segments = [play.segment() for play in plays]
        killed = draw.choice(routers)
        flow(plays, segments, draw)
        killed.kill()
        flow(plays, segments, draw)
        killed.start()
        for play, segment in zip(plays, segments, strict=True):
            play.publisher.publish_all(segment)
        ready(*routers)
        for router in routers:
            for play in plays:
                router.wait_for_seq(play.name, play.seq)
                asked += play.is_exact(router)
        if draw.random() < 0.3:
            added = start(*(play.settings for play in plays))
            ready(added)
            routers[draw.randrange(3)].kill()
            routers = [*(router for router in routers if router.is_running), added][-3:]
    assert asked > 3 * ROUNDS * 10
    assert sum(router.metric("kvroute_state_errors_total") for router in routers) == 0


def flow(plays: list[RecordedPlay], segments: list[list[bytes]], draw: random.Random) -> None:
    """Some batches of each, with pauses."""
    for play, segment in zip(plays, segments, strict=True):
        for _ in range(draw.randint(0, len(segment))):
            play.publisher.publish(segment.pop(0))
            if draw.random() < 0.2:
                time.sleep(0.02)


def test_a_replica_that_lost_batches_for_good_takes_over_what_others_know(
    start: Start, server: RedisServer, stack: ExitStack
) -> None:
    publisher = stack.enter_context(Publisher(buffer_steps=2))
    own = instance("one", publisher)
    knowing = start(own)
    ready(knowing)
    publisher.wait_for_subscriber()
    for number in range(5):
        publisher.publish(batch(None, [vllm_stored(prompt(number))]))
        knowing.wait_for_seq("one", number)
    wait_until(lambda: knowing.metric("kvroute_state_writes_total") >= 1, 10)
    server.pause()
    late = start(own)
    ready(late)
    late.wait_for_seq("one", 4)
    assert late.worker("one")["trust"] == "partial"
    assert [matched(late, number) for number in range(5)] == [0, 0, 0, 64, 64]
    server.resume()
    publisher.publish(batch(None, [vllm_stored(prompt(5))]))
    late.wait(lambda: late.worker("one")["trust"] == "exact")
    for router in (knowing, late):
        router.wait_for_seq("one", 5)
        assert [matched(router, number) for number in range(6)] == [64] * 6
    publisher.publish(batch(None, [vllm_stored(prompt(6))]))
    knowing.wait(lambda: matched(knowing, 6) == 64)
    assert knowing.worker("one")["resets"] == {}


def matched(router: RouterProcess, number: int) -> int:
    answer = router.route(prompt(number), model="m")
    count: int = next(one["matched_tokens"] for one in answer["candidates"] if one["instance"] == "one")
    return count


def test_instances_changed_on_one_replica_change_on_all_also_on_those_that_were_away(start: Start) -> None:
    first, stopped, restarted = start(), start(), start()
    ready(first, stopped, restarted)
    everywhere = (first, stopped, restarted)
    names = ["a", "b", "a/b c%2F", "ü"]
    for number, name in enumerate(names):
        post(everywhere[number % 3], name)
    for router in everywhere:
        router.wait(lambda one=router: set(one.instances()) == set(names))  # type: ignore[misc]
    stopped.pause()
    restarted.kill()
    first.http.delete("/instances/a").raise_for_status()
    first.http.post("/instances/b/drain").raise_for_status()
    post(first, "c")
    first.wait(lambda: first.metric("kvroute_state_errors_total") == 0)
    stopped.resume()
    restarted.start()
    for router in everywhere:
        router.wait(lambda one=router: set(one.instances()) == {"b", "a/b c%2F", "ü", "c"})  # type: ignore[misc]
        router.wait(lambda one=router: one.instances()["b"]["draining"])  # type: ignore[misc]
    restarted.http.post("/instances/b/undrain").raise_for_status()
    for router in everywhere:
        router.wait(lambda one=router: not one.instances()["b"]["draining"])  # type: ignore[misc]


def post(router: RouterProcess, name: str, **fields: Any) -> None:
    answer = router.http.post("/instances", json=instance(name, model="m") | {"url": free_url()} | fields)
    answer.raise_for_status()


def test_two_uvicorn_workers_behind_one_port_are_one_router(start: Start, stack: ExitStack) -> None:
    stream = vllm_stream("swa_two_windows")
    play = RecordedPlay("m0", stream, stack.enter_context(Publisher(stream.topic)))
    both = start(command=UVICORN)
    both.wait(lambda: len(both.log_entries("Application startup complete.")) == 2, 30)
    workers = [int(pid) for pid in re.findall(r"Started server process \[(\d+)\]", both.log())]
    assert len(workers) == 2
    both.http.post("/instances", json=play.settings).raise_for_status()
    for others in (workers[1:], workers[:1]):
        with stopped(others):
            both.reconnect()
            both.wait(lambda: "m0" in both.instances())
    play.publisher.wait_for_subscriber(count=2)
    for _ in range(4):
        play.publisher.publish_all(play.segment())
        for others in (workers[1:], workers[:1]):
            with stopped(others):
                both.reconnect()
                both.wait_for_seq("m0", play.seq)
                assert play.is_exact(both) > 0
    both.http.delete("/instances/m0").raise_for_status()
    for others in (workers[1:], workers[:1]):
        with stopped(others):
            both.reconnect()
            both.wait(lambda: not both.instances())


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """SIGSTOP meanwhile, so that another process must answer."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
