"""The stack that Prometheus watches, for tests: two routers with one Redis, three CPU engines, traffic with reports."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.support.cpu_engine import CpuEngine, cpu_engine, drained
from tests.support.fleet import fleet
from tests.support.prometheus_server import PrometheusServer
from tests.support.redis_server import RedisServer
from tests.support.router_process import RouterProcess

DEPLOY = Path(__file__).parents[3] / "deploy"
CONFIG = DEPLOY / "prometheus" / "prometheus.yml"
MODEL = "tiny"
FACES = {"vllm-0": "vllm", "vllm-1": "vllm", "sglang-0": "sglang"}
SEED = {"hash_algorithm": "sha256_cbor", "hash_seed": "0"}
INTERVAL = "2s"


class ObservedStack:
    """Routers and engines under the names that prometheus.yml gives them."""

    def __init__(self, routers: dict[str, RouterProcess], engines: dict[str, CpuEngine], redis: RedisServer) -> None:
        self.redis = redis
        self.routers = routers
        self.engines = engines
        self._random = random.Random(4)
        self._systems = [self._text(200), self._text(90)]

    def addresses(self) -> dict[str, str]:
        """Where what prometheus.yml names is."""
        ports = {"router": "8900", "vllm": "8000", "sglang": "30000"}
        urls = {name: str(router.http.base_url) for name, router in self.routers.items()}
        urls |= {name: engine.url for name, engine in self.engines.items()}
        return {
            f"{name}:{ports[name.partition('-')[0]]}": url.removeprefix("http://").rstrip("/")
            for name, url in urls.items()
        }

    def serve(self, requests: int) -> None:
        """So many requests, each router in turn, and one to each engine that no router saw.

        A request is routed, computed and reported on. All events are drained afterwards.
        """
        for engine in self.engines.values():
            engine.complete(self._systems[0] + self._text(40), max_tokens=20)
        for number in range(requests):
            self._serve_one(self.routers[f"router-{number % 2}"])
        for name, engine in self.engines.items():
            for router in self.routers.values():
                drained(engine, lambda rank, r=router, n=name: r.worker(n)["seq"])  # type: ignore[misc]

    def _serve_one(self, router: RouterProcess) -> None:
        tokens = self._random.choice(self._systems) + self._text(self._random.randint(10, 60))
        answer = router.http.post("/route", json={"model": MODEL, "token_ids": tokens})
        assert answer.status_code == 200, answer.text
        route = answer.json()
        usage = self.engines[route["instance"]].complete(tokens, headers=route["headers"], max_tokens=20)["usage"]
        report = {
            "prompt_tokens": usage["prompt_tokens"],
            "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
        }
        router.http.post(f"/requests/{route['request_id']}/finished", json=report).raise_for_status()

    def _text(self, length: int) -> list[int]:
        return [self._random.randrange(8192) for _ in range(length)]


@contextmanager
def observed_stack() -> Iterator[ObservedStack]:
    """Started, every worker live on both routers; nothing was served yet."""
    with ExitStack() as open_until_end:
        enter = open_until_end.enter_context
        redis = enter(RedisServer())
        engines = {
            name: enter(cpu_engine(face, **(SEED if face == "vllm" else {"dynamo": True})))  # type: ignore[arg-type]
            for name, face in FACES.items()
        }
        settings = fleet(*(_instance(name, engine) for name, engine in engines.items()), state=redis.url)
        routers = {name: enter(RouterProcess(settings)) for name in ("router-0", "router-1")}
        for router in routers.values():
            router.wait_until_ready()
            router.wait(lambda r=router: all(r.worker(name)["state"] == "live" for name in engines), 20.0)  # type: ignore[misc]
        yield ObservedStack(routers, engines, redis)


@contextmanager
def watched(stack: ObservedStack) -> Iterator[PrometheusServer]:
    """Prometheus with the repository's settings, once it has scraped everything."""
    with PrometheusServer(CONFIG, stack.addresses(), often=INTERVAL) as server:
        server.wait_for("up == 1", lambda samples: len(samples) == len(stack.addresses()))
        yield server


def _instance(name: str, engine: CpuEngine) -> dict[str, Any]:
    return {"id": name, "engine": FACES[name], "model": MODEL, "url": engine.url}
