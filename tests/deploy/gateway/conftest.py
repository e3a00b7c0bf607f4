"""The fleet that tests of gateways share where nothing is killed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import httpx
import pytest

from tests.deploy.gateway.stack import HASHES, cached, completion, instance, prompt, router
from tests.support.cpu_engine import CpuEngine, cpu_engine, drained
from tests.support.router_process import RouterProcess

SLOW_DECODE_US = 100_000.0


@dataclass(frozen=True)
class Fleet:
    """Engines vllm-0, vllm-1 and sglang-0 of the model `tiny`, `ranks` with two ranks, `slow`; and their router."""

    engines: dict[str, CpuEngine]
    router: RouterProcess

    def warm(self, name: str, tokens: list[int], rank: int = 0) -> None:
        """Let an engine compute a prompt, and the router hear of it."""
        model = "tiny" if name.startswith(("vllm", "sglang")) else name
        self.engines[name].complete(tokens, {"X-data-parallel-rank": str(rank)}, model=model)
        self.settle()

    def settle(self) -> None:
        """Until the router has applied everything that the engines have published."""
        for name, engine in self.engines.items():
            drained(engine, lambda rank, name=name: self._seq(name, rank))  # type: ignore[misc]

    def reused_by_rank(self, http: httpx.Client, seed: int) -> list[int]:
        """By rank, what a gateway's answer reuses of a prompt that this rank has, though the client names the other."""
        reused = []
        for rank in (0, 1):
            tokens = prompt(seed + rank, 80)
            self.warm("ranks", tokens, rank)
            other = {"X-data-parallel-rank": str(1 - rank)}
            answer = http.post("/v1/completions", json=completion(tokens, model="ranks"), headers=other)
            reused.append(cached(answer.json()))
        return reused

    def _seq(self, name: str, rank: int) -> int | None:
        seq: int | None = self.router.instances()[name]["workers"][rank]["seq"]
        return seq


@pytest.fixture(scope="module")
def shared() -> Iterator[Fleet]:
    """Up and ready."""
    with ExitStack() as stack:
        enter = stack.enter_context
        engines = {name: enter(cpu_engine("vllm", **HASHES)) for name in ("vllm-0", "vllm-1")}
        engines["sglang-0"] = enter(cpu_engine("sglang", dynamo=True, decode_log_interval=1))
        engines["ranks"] = enter(cpu_engine("vllm", model="ranks", dp_size=2, **HASHES))
        engines["slow"] = enter(cpu_engine("vllm", model="slow", **{**HASHES, "decode_us": SLOW_DECODE_US}))
        settings = [instance(name, engines[name]) for name in ("vllm-0", "vllm-1")]
        settings.append(instance("sglang-0", engines["sglang-0"], "sglang"))
        settings.append(instance("ranks", engines["ranks"], model="ranks") | {"dp_size": 2})
        settings.append(instance("slow", engines["slow"], model="slow"))
        process = enter(router(settings))
        process.wait_until_ready()
        yield Fleet(engines, process)
