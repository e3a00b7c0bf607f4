"""An engine that was killed comes back with an empty cache, and the routers know soon."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from tests.deploy.stack.running import MODEL, RunningStack

pytestmark = pytest.mark.xdist_group("stack")

EMPTY_S = 2.0
"""From when the new process listens. How long Python takes to start is the machine's affair."""
EVENTS = 1
"""The place of the events' port among an engine's addresses."""
PROMPT = "What an engine held before it was killed it does not hold any more. " * 30


@pytest.fixture
def routers(stack: RunningStack) -> Iterator[list[httpx.Client]]:
    with ExitStack() as open_clients:
        yield [
            open_clients.enter_context(httpx.Client(base_url=stack.url(name), timeout=5.0, trust_env=False))
            for name in ("router-0", "router-1")
        ]


@pytest.mark.parametrize("instance", ["vllm-0", "sglang-0"])
def test_a_restarted_engine_is_believed_empty_within_two_seconds(
    stack: RunningStack, routers: list[httpx.Client], instance: str
) -> None:
    service = f"cpu-{instance}"
    httpx.post(
        f"{stack.url(service)}/v1/completions",
        json={"model": MODEL, "prompt": PROMPT, "max_tokens": 2},
        timeout=20.0,
        trust_env=False,
    ).raise_for_status()
    stack.wait(lambda: all(_reusable(router, instance) > 0 for router in routers), 10.0)
    killed = stack.kill(service)
    stack.wait(lambda: stack.facts()[service]["pid"] not in (None, killed), 10.0)
    began = time.monotonic()
    stack.wait(lambda: _listens(stack.facts()[service]["addresses"][EVENTS]), 30.0)
    listened = time.monotonic()
    stack.wait(lambda: all(_reusable(router, instance) == 0 for router in routers), 20.0)
    took_s = time.monotonic() - listened
    print(f"{instance}: listens {listened - began:.2f} s after its start, believed empty {took_s:.2f} s after that")
    assert took_s < EMPTY_S
    stack.wait(lambda: stack.is_back(service, killed), 60.0)
    assert all(_reusable(router, instance) == 0 for router in routers)


def _listens(address: str) -> bool:
    host, _, port = address.partition(":")
    try:
        socket.create_connection((host, int(port)), 1.0).close()
    except OSError:
        return False
    return True


def _reusable(router: httpx.Client, instance: str) -> int:
    """What a router believes that the instance can reuse of the prompt."""
    body = {"model": MODEL, "prompt": PROMPT, "dry_run": True, "explain": True}
    answer = router.post("/route", json=body)
    answer.raise_for_status()
    found: int = next(one["reusable_tokens"] for one in answer.json()["candidates"] if one["instance"] == instance)
    return found
