"""The bearer token that routing and changes of the fleet can be guarded with."""

from __future__ import annotations

import hmac

from pydantic import SecretStr
from starlette.requests import Request

from app.problems import Problem

_CHALLENGE = {"www-authenticate": 'Bearer realm="kvroute"'}


def require_token(request: Request, token: SecretStr | None) -> None:
    """Raise Problem 401 unless no token is set or the request carries it. The comparison takes the same time always."""
    if token is None:
        return
    given = request.headers.getlist("authorization")
    scheme, _, credentials = (given[0] if len(given) == 1 else "").partition(" ")
    expected = token.get_secret_value().encode()
    equal = hmac.compare_digest(credentials.strip().encode("latin-1", "replace"), expected)
    if not equal or scheme.lower() != "bearer":
        detail = "the bearer token is wrong" if given else "a bearer token is needed"
        raise Problem(401, detail, headers=_CHALLENGE)
