"""The choice of the core, and that the native hashes are the Python ones."""

from __future__ import annotations

import hashlib
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.native import CORE, CoreError, chosen
from index.prompt import Prompt
from index.request_key import prompt_keys, root_key
from tests.support.cores import native_module


@pytest.fixture(scope="module")
def built() -> ModuleType:
    return native_module()


def test_the_python_core_can_be_asked_for() -> None:
    assert chosen("python") == ("python", "KVROUTE_CORE=python", None)


def test_an_unknown_core_is_told_with_what_is_allowed() -> None:
    with pytest.raises(CoreError, match=r"KVROUTE_CORE='c': it must be one of auto, native, python"):
        chosen("c")


def test_the_core_that_serves_says_why_unless_it_is_native() -> None:
    assert (CORE.name == "native") == (CORE.reason is None) == (CORE.module is not None)


@given(st.binary(max_size=400))
def test_sha256_is_that_of_the_library_with_and_without_instructions(built: ModuleType, message: bytes) -> None:
    assert built.sha256(message) == built.sha256_portable(message) == hashlib.sha256(message).digest()


@given(st.binary(max_size=700), st.integers(1, 20), st.none() | st.text(max_size=5))
def test_request_keys_are_those_of_python(built: ModuleType, tokens: bytes, size: int, salt: str | None) -> None:
    expected = b"".join(prompt_keys(Prompt(tokens[: len(tokens) // 4 * 4], cache_salt=salt), size))
    assert built.prompt_keys(root_key(None, salt), tokens, size) == expected


def test_lengths_that_cannot_be_are_refused(built: ModuleType) -> None:
    with pytest.raises(ValueError, match="8 bytes"):
        built.prompt_keys(b"short", b"", 16)
    with pytest.raises(ValueError, match="block_size"):
        built.prompt_keys(bytes(8), b"", 0)
