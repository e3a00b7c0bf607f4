"""The version of this software, also where it runs from a checkout that was never installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("kvroute")
except PackageNotFoundError:
    VERSION = "0+checkout"
