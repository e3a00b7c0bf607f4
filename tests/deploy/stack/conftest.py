"""One running stack for the tests that disturb it; each of them waits until it is whole again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.deploy.stack.running import RunningStack


@pytest.fixture(scope="session")
def one_stack() -> Iterator[RunningStack]:
    with RunningStack() as stack:
        yield stack


@pytest.fixture
def stack(one_stack: RunningStack) -> RunningStack:
    one_stack.wait(one_stack.all_healthy, 60.0)
    return one_stack
