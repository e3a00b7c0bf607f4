"""The two forms of slot vectors as test parameters: arrays always, tensors where torch is installed."""

from __future__ import annotations

import warnings
from importlib import import_module

import pytest

from deploy.engine.slot_vectors import array_vector, tensor_vector


def _torch_is_installed() -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that there is no numpy, which is not needed
        try:
            import_module("torch")
        except ImportError:
            return False
    return True


VECTORS = [
    pytest.param(array_vector, id="array"),
    pytest.param(
        tensor_vector,
        id="tensor",
        marks=pytest.mark.skipif(not _torch_is_installed(), reason="torch (the extra `engine`) is not installed"),
    ),
]
