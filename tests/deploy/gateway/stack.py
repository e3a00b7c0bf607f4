"""A small fleet for gateways: CPU engines and real routers on loopback, under the names of the gateway's files."""

from __future__ import annotations

import random
from typing import Any

from tests.support.cpu_engine import CpuEngine, EngineProcess
from tests.support.fleet import fleet
from tests.support.router_process import RouterProcess

NAMES = ("vllm-0:8000", "vllm-1:8000", "sglang-0:30000")
HASHES = {"hash_algorithm": "sha256_cbor", "hash_seed": "0"}


def address(url: str) -> str:
    """host:port of a URL."""
    return url.partition("://")[2].rstrip("/")


def instance(name: str, engine: CpuEngine | EngineProcess, kind: str = "vllm", model: str = "tiny") -> dict[str, Any]:
    """An engine in the router's settings."""
    return {"id": name, "engine": kind, "model": model, "url": engine.url}


def router(instances: list[dict[str, Any]], **sections: Any) -> RouterProcess:
    """A router of its own process for them, not started."""
    return RouterProcess(fleet(*instances, **sections))


def urls(routers: list[RouterProcess]) -> list[str]:
    """Where they listen."""
    return [str(one.http.base_url) for one in routers]


def addresses(routers: list[str], engines: list[str]) -> dict[str, str]:
    """What stands for each name in the gateway's files. With fewer engines or routers the last stands for the rest."""
    named = {f"router-{n}:8900": address(routers[min(n, len(routers) - 1)]) for n in (0, 1)}
    return named | {name: address(engines[min(n, len(engines) - 1)]) for n, name in enumerate(NAMES)}


def prompt(seed: int, length: int = 100) -> list[int]:
    """Token ids that no other seed gives."""
    chance = random.Random(seed)
    return [chance.randrange(300, 8192) for _ in range(length)]


def completion(tokens: object, **fields: Any) -> dict[str, Any]:
    """A body for /v1/completions of four tokens."""
    return {"model": "tiny", "prompt": tokens, "max_tokens": 4, "ignore_eos": True, **fields}


def cached(answer: dict[str, Any]) -> int:
    """The tokens that the engine says it reused."""
    count: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count
