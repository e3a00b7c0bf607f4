"""What several tests of the process edge need."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import structlog

from app.logs import configure_logs
from app.settings import LogSettings
from tests.support.redis_server import RedisServer


@pytest.fixture
def log_stream() -> Iterator[io.StringIO]:
    """Where logs go while a test runs, as JSON from debug on; afterwards logging is as it was before."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    stream = io.StringIO()
    configure_logs(LogSettings(level="debug"), stream)
    yield stream
    root.handlers = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    logging.getLogger("uvicorn.access").disabled = False
    structlog.reset_defaults()


@pytest.fixture
def log_lines(log_stream: io.StringIO) -> Callable[[], list[dict[str, object]]]:
    """Reads all entries written so far."""
    return lambda: [json.loads(line) for line in log_stream.getvalue().splitlines()]


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A Redis of the test's own, which it may stop."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What is entered here is left when the test ends."""
    with ExitStack() as stack:
        yield stack
