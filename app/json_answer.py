"""Answers in JSON."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from starlette.responses import Response

_ENCODER = msgspec.json.Encoder()


def json_answer(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """`body` as plain values, encoded."""
    return Response(_ENCODER.encode(body), status, headers=headers, media_type="application/json")
