"""Which core serves, the native one (`index._core`, C++) or the Python one, and why. Decided once, at import.

`KVROUTE_CORE` says `auto` (native when it was built, the default), `native` (fail at start without it) or `python`.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Final, NamedTuple

CHOICES: Final = ("auto", "native", "python")
VARIABLE: Final = "KVROUTE_CORE"


class CoreError(Exception):
    """The core that was asked for cannot serve; says why and what is allowed."""


class Core(NamedTuple):
    """The core that serves. `reason` says why it is the Python one; None when it is native."""

    name: str
    reason: str | None
    module: ModuleType | None


def chosen(wish: str) -> Core:
    """The core for this setting. CoreError for an unknown one, or for `native` where it was not built."""
    if wish not in CHOICES:
        raise CoreError(f"{VARIABLE}={wish!r}: it must be one of {', '.join(CHOICES)}")
    if wish == "python":
        return Core("python", f"{VARIABLE}=python", None)
    try:
        return Core("native", None, importlib.import_module("index._core"))
    except ImportError as error:
        if wish == "native":
            raise CoreError(f"{VARIABLE}=native, but the native core cannot be loaded: {error}") from None
        return Core("python", f"the native core cannot be loaded: {error}", None)


def decided(wish: str) -> tuple[Core, CoreError | None]:
    """The core to go on with, and the error that the router's start must end with, if there is one."""
    try:
        return chosen(wish), None
    except CoreError as error:
        return Core("python", str(error), None), error


CORE, FAULT = decided(os.environ.get(VARIABLE) or "auto")
