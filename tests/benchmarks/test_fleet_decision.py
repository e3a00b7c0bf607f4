"""The fleet simulation decides as the running service does: same index, same router, same loads, same answer."""

from __future__ import annotations

import time
from contextlib import ExitStack
from random import Random
from typing import Any

from app.candidates import load_of
from benchmarks.fleet_policies import MODEL, decide
from benchmarks.fleet_trace import prompt_units
from tests.support.cpu_engine import CpuEngine, cpu_engine, drained
from tests.support.fleet import fleet, seq_of
from tests.support.service import Running, serving

NAMES = ("a", "b", "c")


def expected(run: Running, prompt: list[int], seed: int) -> dict[str, Any]:
    """The simulation's decision on the service's own state."""
    instances = {name: run.service.around.fleet.get(name) for name in NAMES}
    loads = {
        tracked.worker: load_of(tracked)
        for instance in instances.values()
        if instance is not None
        for tracked in instance.workers.values()
    }
    router = run.service.routing.router
    router._random = Random(seed)
    decision, _ = decide(run.service.around.index, router, prompt, loads, time.monotonic())
    router._random = Random(seed)
    scores = {worker.instance: round(score, 4) for worker, score in decision.scores.items()}
    return {
        "instance": decision.worker.instance,
        "reason": decision.reason,
        "reusable_tokens": decision.reusable,
        "scores": scores,
    }


def answered(run: Running, prompt: list[int], **fields: Any) -> tuple[str, dict[str, Any]]:
    """The service's answer, in the same words, and the request's id."""
    route = run.route(prompt, model=MODEL, **fields)
    scores = {one["instance"]: one["score"] for one in route["candidates"]}
    words = {name: route[name] for name in ("instance", "reason", "reusable_tokens")}
    return route["request_id"], {**words, "scores": scores}


def test_the_simulation_decides_as_the_service_does() -> None:
    dice, said, reasons = Random(3), [[1, 2]], set()
    with ExitStack() as stack:
        engines = {name: stack.enter_context(cpu_engine("vllm", model=MODEL, block_size=16)) for name in NAMES}
        settings = [{"id": name, "engine": "vllm", "model": MODEL, "url": one.url} for name, one in engines.items()]
        run = stack.enter_context(serving(fleet(*settings)))
        for name in NAMES:
            run.wait_for_state(name, "live")
        for number in range(40):
            long = number % 8 == 5  # a stranger whose prompt keeps an engine busy: its first token never comes
            blocks = list(range(1000 * number, 1000 * number + 300)) if long else [*dice.choice(said), number + 10]
            prompt = prompt_units(blocks, 512 * len(blocks) - dice.randrange(512))
            wanted = expected(run, prompt, number)
            request_id, got = answered(run, prompt)
            assert got == wanted, number
            reasons.add(got["reason"])
            if not long:
                _serve(run, engines, got["instance"], prompt)
                said.append(blocks)
                run.http.post(f"/requests/{request_id}/first_token").raise_for_status()
    assert reasons == {"cold", "prefix", "load"}


def _serve(run: Running, engines: dict[str, CpuEngine], name: str, prompt: list[int]) -> None:
    engines[name].complete(prompt, max_tokens=2)
    drained(engines[name], lambda rank: seq_of(run, name, rank))
