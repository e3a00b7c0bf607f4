"""A pytest plugin (`-p tests.support.core_file`): the native core from the file that KVROUTE_CORE_FILE names.

`make check-native` runs the tests over a build with sanitizers in this way, without installing it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

_file = Path(os.environ["KVROUTE_CORE_FILE"])
_spec = importlib.util.spec_from_file_location("index._core", _file)
assert _spec is not None
assert _spec.loader is not None
sys.modules["index._core"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sys.modules["index._core"])
