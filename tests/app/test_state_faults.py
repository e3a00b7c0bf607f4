"""Redis hangs, dies, forgets, is full, read-only or locked while events flow: routing goes on, the state becomes whole.

Whole: a router that starts now and asks its engines nothing would hold what the running one holds.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis

from app.fleet import Fleet
from app.instance_settings import InstanceSettings
from app.warm_start import WarmStart
from index.index import Index
from index.pool import WorkerSpec
from index.worker import EngineKind, Trust, Worker
from store.state_url import open_store
from tests.support.engine_events import prompt, sglang_stored, vllm_removed, vllm_stored
from tests.support.fleet import fleet, instance, wait_for_seq
from tests.support.holdings import Holding, holdings
from tests.support.publisher import Publisher, batch
from tests.support.redis_server import Options, RedisServer
from tests.support.service import Running, serving, wait_until

PASSWORD = "pass-word"
TIMES = {"poll_s": 0.05, "call_timeout_s": 0.3, "load_timeout_s": 1.0}
KINDS = {"v": EngineKind.VLLM, "s": EngineKind.SGLANG}
WHOLE_S = 15.0
"""How long the state may take until it is whole again: retries wait up to some seconds."""


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer(Options(password=PASSWORD)) as server:
        yield server


@pytest.fixture
def engines() -> Iterator[Engines]:
    with Engines() as engines:
        yield engines


class Engines:
    """One engine of each kind that publish a batch every few milliseconds, stores and removals, while `flowing`."""

    def __init__(self) -> None:
        self.publishers = {name: Publisher() for name in KINDS}
        self.flowing = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Engines:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self.flowing.set()
        self._thread.join(10)
        for publisher in self.publishers.values():
            publisher.close()

    def rest(self, running: Running) -> None:
        """Publish nothing more; until everything is applied."""
        self.flowing.clear()
        time.sleep(0.1)
        for name, publisher in self.publishers.items():
            wait_for_seq(running, name, publisher.next_seq - 1)

    def _run(self) -> None:
        number = 0
        while self.flowing.wait() and not self._ended:
            number += 1
            gone = [vllm_removed(vllm_stored(prompt(number - 20)))] if number % 3 == 0 and number > 20 else []
            self.publishers["v"].publish(batch(None, [vllm_stored(prompt(number)), *gone]))
            self.publishers["s"].publish(batch(None, [sglang_stored(prompt(number), page_size=16)]))
            time.sleep(0.005)


class Routing:
    """Asks without a pause; every answer must be a 200."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._tokens = prompt(1)

    def p90_s(self, seconds: float) -> float:
        """The time that nine of ten answers take at most; of 20 at least, also where they take longer together."""
        took, end = list[float](), time.monotonic() + seconds
        while time.monotonic() < end or len(took) < 20:
            began = time.perf_counter()
            self._running.route(self._tokens, model="m")
            took.append(time.perf_counter() - began)
        return sorted(took)[len(took) * 9 // 10]


def settings(server: RedisServer, engines: Engines, **store: Any) -> dict[str, Any]:
    own = [instance(name, publisher, engine=KINDS[name].value) for name, publisher in engines.publishers.items()]
    return fleet(*own, state=server.url, state_store={**TIMES, **store})


def stored(server: RedisServer, name: str) -> tuple[Counter[Holding], int, Trust] | None:
    """What a fresh router would hold: its blocks, how far, with which trust."""

    async def load() -> tuple[Counter[Holding], int, Trust] | None:
        own = InstanceSettings.model_validate(
            {"id": name, "engine": KINDS[name].value, "model": "m", "url": "http://x"}
        )
        one, index, worker = Fleet().add(own), Index(), Worker(name, 0)
        index.add(worker, WorkerSpec("m", own.engine))
        store = open_store(server.url)
        try:
            restored = await WarmStart(index, one, one.workers[0], None).load(store)
        finally:
            await store.close()
        if restored is None:
            return None
        return holdings(index.dump(worker)), restored.position.next_seq - 1, restored.position.trust

    return asyncio.run(load())


def becomes_whole(server: RedisServer, running: Running, engines: Engines) -> None:
    """Without a further batch, as far as the failed writes were noticed."""
    engines.rest(running)
    for name, publisher in engines.publishers.items():
        held = holdings(running.service.around.index.dump(Worker(name, 0)))
        expected = held, publisher.next_seq - 1, Trust.EXACT
        assert len(held) > 20
        wait_until(lambda n=name, e=expected: stored(server, n) == e, WHOLE_S)  # type: ignore[misc]
        assert running.worker(name)["trust"] == "exact"
        assert running.worker(name)["resets"] == {}


def hangs(server: RedisServer) -> None:
    server.pause()
    time.sleep(3)
    server.resume()


def is_restarted_empty(server: RedisServer) -> None:
    server.kill()
    time.sleep(1)
    server.restart(empty=True)


def is_flushed(server: RedisServer) -> None:
    server.command("FLUSHALL")
    time.sleep(1)


def evicts(server: RedisServer) -> None:
    server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    keys = len(server.command("KEYS", "kvroute:*"))
    limit = server.memory_bytes()
    while len(server.command("KEYS", "kvroute:*")) == keys:
        limit -= 20_000
        server.command("CONFIG", "SET", "maxmemory", limit)
    server.command("CONFIG", "SET", "maxmemory", 0)


def is_full(server: RedisServer) -> None:
    server.command("CONFIG", "SET", "maxmemory", 1)
    time.sleep(1.5)
    server.command("CONFIG", "SET", "maxmemory", 0)


def loses_connections(server: RedisServer) -> None:
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


def is_read_only(server: RedisServer) -> None:
    server.command("REPLICAOF", "127.0.0.1", "1")
    time.sleep(1.5)
    server.command("REPLICAOF", "NO", "ONE")


def is_locked(server: RedisServer) -> None:
    server.command("CONFIG", "SET", "requirepass", "another")
    as_another(server, "CLIENT", "KILL", "TYPE", "normal")
    time.sleep(1.5)
    as_another(server, "CONFIG", "SET", "requirepass", PASSWORD)


def as_another(server: RedisServer, *arguments: Any) -> None:
    with redis.Redis("127.0.0.1", server.port, password="another", protocol=2) as client:
        client.execute_command(*arguments)


FAULTS = [hangs, is_restarted_empty, is_flushed, evicts, is_full, loses_connections, is_read_only, is_locked]
SILENT = [is_flushed, evicts, loses_connections]
"""No call need fail: what is lost is missed, and connections are made again."""


@pytest.mark.parametrize("fault", FAULTS)
def test_routing_goes_on_and_the_state_becomes_whole(
    server: RedisServer, engines: Engines, fault: Callable[[RedisServer], None]
) -> None:
    with ExitStack() as stack:
        running = stack.enter_context(serving(settings(server, engines)))
        flows(running, engines)
        routing = Routing(running)
        before = routing.p90_s(0.5)
        ill = threading.Thread(target=fault, args=(server,))
        ill.start()
        during = routing.p90_s(1.5)
        ill.join()
        assert during < 5 * before + 0.05, (before, during)
        assert fault in SILENT or errors(running) > 0
        becomes_whole(server, running, engines)
        engines.flowing.set()
        time.sleep(0.3)
        becomes_whole(server, running, engines)
    with serving(settings(server, engines)) as running:
        for name, publisher in engines.publishers.items():
            wait_for_seq(running, name, publisher.next_seq - 1)
            assert running.worker(name)["replayed_batches"] == 0
            running.wait_for_trust(name, "exact")


def errors(running: Running) -> float:
    """All failed operations of the store."""
    lines = running.http.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("kvroute_state_errors_total{"))


def flows(running: Running, engines: Engines) -> None:
    """Until batches are stored."""
    for publisher in engines.publishers.values():
        publisher.wait_for_subscriber()
    engines.flowing.set()
    wait_until(lambda: running.metric("kvroute_state_writes_total") > 50, 15)


@pytest.mark.parametrize("fault", [hangs, is_restarted_empty])
def test_more_than_the_queue_holds_is_made_good(
    server: RedisServer, engines: Engines, fault: Callable[[RedisServer], None]
) -> None:
    with serving(settings(server, engines, queue_batches=20)) as running:
        flows(running, engines)
        fault(server)
        assert running.metric('kvroute_state_errors_total{op="overflow"}') > 0
        assert running.metric("kvroute_state_lag_batches") <= 20
        becomes_whole(server, running, engines)


def test_a_wrong_password_at_the_start_is_survived_and_made_good(server: RedisServer, engines: Engines) -> None:
    server.command("CONFIG", "SET", "requirepass", "another")
    with serving(settings(server, engines)) as running:
        for publisher in engines.publishers.values():
            publisher.wait_for_subscriber()
        engines.flowing.set()
        wait_until(lambda: running.http.get("/readyz").status_code == 200, 10)
        Routing(running).p90_s(0.5)
        as_another(server, "CONFIG", "SET", "requirepass", PASSWORD)
        becomes_whole(server, running, engines)


def test_a_redis_that_comes_up_after_the_router_is_used(engines: Engines) -> None:
    with RedisServer() as server:
        server.stop()
        with serving(settings(server, engines)) as running:
            for publisher in engines.publishers.values():
                publisher.wait_for_subscriber()
            engines.flowing.set()
            wait_until(lambda: running.http.get("/readyz").status_code == 200, 10)
            time.sleep(0.5)
            server.start()
            becomes_whole(server, running, engines)


def test_keys_that_are_evicted_while_the_engine_is_idle_are_missed_and_written_again(
    server: RedisServer, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.state_writer.PROBE_S", 0.5)
    with serving(settings(server, engines)) as running:
        flows(running, engines)
        becomes_whole(server, running, engines)
        for key in server.command("KEYS", "kvroute:*"):
            server.command("DEL", key)
            becomes_whole(server, running, engines)


def test_keys_live_as_long_as_a_replica_does_and_expire_after_it(server: RedisServer, engines: Engines) -> None:
    with serving(settings(server, engines, ttl_s=2.0)) as running:
        flows(running, engines)
        engines.rest(running)
        time.sleep(3)
        becomes_whole(server, running, engines)
        assert all(0 < server.command("PTTL", key) <= 2000 for key in server.command("KEYS", "kvroute:*"))
    wait_until(lambda: not server.command("KEYS", "kvroute:*"), 5)
