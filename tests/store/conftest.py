"""Stores under test: in memory, and in a real Redis that is empty at the start of each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack

import pytest

from store.memory_state import MemoryState
from store.state import StateLimits, StateStore
from store.state_url import open_store
from tests.support.redis_server import RedisServer

LIMITS = StateLimits(call_s=5.0, poll_s=0.02)

Replicas = Callable[[], StateStore]
"""Each call is another replica's store over the same contents."""


@pytest.fixture(scope="session")
def shared_server() -> Iterator[RedisServer]:
    """A server that no test may stop or configure."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def server(shared_server: RedisServer) -> RedisServer:
    """The same, empty, also of scripts."""
    shared_server.command("FLUSHALL")
    shared_server.command("SCRIPT", "FLUSH")
    return shared_server


@pytest.fixture
async def redis_replicas(server: RedisServer) -> AsyncIterator[Replicas]:
    """Replicas over Redis."""
    async with AsyncExitStack() as stack:
        yield lambda: opened(stack, server.url)


@pytest.fixture(params=["memory", "redis"])
async def replicas(request: pytest.FixtureRequest) -> AsyncIterator[Replicas]:
    """Replicas over either kind of store."""
    if request.param == "memory":
        first = MemoryState()
        yield lambda: MemoryState(first)
        return
    server: RedisServer = request.getfixturevalue("server")
    async with AsyncExitStack() as stack:
        yield lambda: opened(stack, server.url)


@pytest.fixture
def store(replicas: Replicas) -> StateStore:
    """One replica's store."""
    return replicas()


def opened(stack: AsyncExitStack, url: str, limits: StateLimits = LIMITS) -> StateStore:
    """A store that is closed with the stack."""
    store = open_store(url, limits)
    stack.push_async_callback(store.close)
    return store
