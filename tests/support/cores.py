"""The two cores of the radix index, for tests that hold for both."""

from __future__ import annotations

import pytest

from index.native import chosen
from index.radix import RadixIndex
from index.radix_native import AnyRadixIndex, NativeRadixIndex

_BUILT = chosen("auto").module is not None

need_native = pytest.mark.skipif(not _BUILT, reason="the native core was not built here")

RADIX_CORES = [
    pytest.param(RadixIndex, id="python"),
    pytest.param(NativeRadixIndex, id="native", marks=need_native),
]

RadixClass = type[AnyRadixIndex]
