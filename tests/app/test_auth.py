"""The bearer token: exactly the right one passes, and the answer to others tells nothing about it."""

from __future__ import annotations

import pytest
from pydantic import SecretStr
from starlette.requests import Request

from app.auth import require_token
from app.problems import Problem

TOKEN = SecretStr("right-word")


def request_with(*authorization: bytes) -> Request:
    return Request({"type": "http", "headers": [(b"authorization", value) for value in authorization]})


@pytest.mark.parametrize("value", [b"Bearer right-word", b"bearer right-word", b"BEARER  right-word "])
def test_the_token_passes(value: bytes) -> None:
    require_token(request_with(value), TOKEN)


@pytest.mark.parametrize(
    "values",
    [
        (),
        (b"",),
        (b"Bearer",),
        (b"Bearer ",),
        (b"Bearer right-wor",),
        (b"Bearer right-word2",),
        (b"Bearer RIGHT-WORD",),
        (b"Basic right-word",),
        (b"right-word",),
        (b"Bearer \xff\xfe",),
        (b"Bearer right-word", b"Bearer right-word"),
    ],
)
def test_anything_else_is_401_with_a_challenge(values: tuple[bytes, ...]) -> None:
    with pytest.raises(Problem) as caught:
        require_token(request_with(*values), TOKEN)
    assert caught.value.status == 401
    assert caught.value.headers is not None
    assert caught.value.headers["www-authenticate"].startswith("Bearer")
    assert "right-word" not in str(caught.value.document)


def test_without_a_token_set_everybody_passes() -> None:
    require_token(request_with(), None)
    require_token(request_with(b"Basic x"), None)
