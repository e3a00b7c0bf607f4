"""What tests of the decision share."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.support.cores import native_module


@pytest.fixture(scope="module", params=["python", "native"])
def core(request: pytest.FixtureRequest) -> ModuleType | None:
    """The native core's module, and None for the Python one: for tests that hold for both."""
    return native_module() if request.param == "native" else None
