"""The two forms of slot vectors as test parameters: arrays always, tensors where torch is installed."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from deploy.engine.slot_vectors import array_vector, tensor_vector

VECTORS = [
    pytest.param(array_vector, id="array"),
    pytest.param(
        tensor_vector,
        id="tensor",
        marks=pytest.mark.skipif(find_spec("torch") is None, reason="torch (the extra `engine`) is not installed"),
    ),
]
