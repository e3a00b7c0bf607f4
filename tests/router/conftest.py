"""What tests of the decision share."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.support.cores import MODULES


@pytest.fixture(scope="module", params=MODULES)
def core(request: pytest.FixtureRequest) -> ModuleType | None:
    """The native core's module, and None for the Python one: for tests that hold for both."""
    module: ModuleType | None = request.param
    return module
