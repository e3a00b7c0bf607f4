"""Both cores: what the block-hash index promises is tested over each of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from index import native
from tests.support.cores import native_module


@pytest.fixture(scope="module", params=["python", "native"])
def core(request: pytest.FixtureRequest) -> Iterator[native.Core]:
    """The core that new pools are made in. Native: skipped where it was not built."""
    wish: str = request.param
    if wish == "native":
        native_module()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "CORE", native.chosen(wish))
        yield native.CORE
