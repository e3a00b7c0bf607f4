"""The two cores, for tests that hold for both."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from index.native import chosen
from index.radix import RadixIndex
from index.radix_native import AnyRadixIndex, NativeRadixIndex

_NATIVE = chosen("auto").module
_MISSING = "the native core was not built here"

need_native = pytest.mark.skipif(_NATIVE is None, reason=_MISSING)


def native_module() -> ModuleType:
    """The extension module; where it was not built the test that asks is skipped."""
    if _NATIVE is None:
        pytest.skip(_MISSING)
    return _NATIVE


MODULES = [pytest.param(None, id="python"), pytest.param(_NATIVE, id="native", marks=need_native)]
"""The native core's module, and None for the Python one."""


def native_radix(page_size: int, unit_bytes: int) -> NativeRadixIndex:
    """A radix index of the native core, whichever serves."""
    assert _NATIVE is not None
    return NativeRadixIndex(_NATIVE, page_size, unit_bytes)


RadixCore = Callable[[int, int], AnyRadixIndex]
RADIX_CORES = [pytest.param(RadixIndex, id="python"), pytest.param(native_radix, id="native", marks=need_native)]
