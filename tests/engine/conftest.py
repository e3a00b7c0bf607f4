from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq
import zmq.asyncio

from tests.support.publisher import Publisher


@pytest.fixture
def context() -> Iterator[zmq.asyncio.Context]:
    context = zmq.asyncio.Context()
    yield context
    context.term()  # hangs if a socket was left open


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    with Publisher() as publisher:
        yield publisher
