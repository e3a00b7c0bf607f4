"""RFC 9457 answers: every error leaves as `application/problem+json`, never with the prompt it is about."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus

import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.shown import json_safe, shown

MEDIA_TYPE = "application/problem+json"
_log = structlog.stdlib.get_logger("kvroute.http")


class Problem(Exception):
    """An answer with an error status. `extra` adds members beside the standard ones (models, instances)."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(status, detail, field)
        self.status = status
        self.detail = detail
        self.field = field
        self.headers = headers
        self.extra = extra

    @property
    def document(self) -> dict[str, object]:
        """The problem document. `type` is `about:blank`: the status and the detail say it all (RFC 9457, 4.2.1)."""
        document: dict[str, object] = {
            **(self.extra or {}),
            "type": "about:blank",
            "title": _title(self.status),
            "status": self.status,
            "detail": self.detail,
        }
        if self.field is not None:
            document["field"] = self.field
        return document

    def response(self) -> Response:
        """The document as an ASCII JSON answer."""
        body = json.dumps(json_safe(self.document), allow_nan=False).encode()
        return Response(body, self.status, headers=self.headers, media_type=MEDIA_TYPE)


def answer_problems(app: FastAPI) -> None:
    """Make `app` answer every error, also unknown paths and unexpected exceptions, as a problem document."""
    app.add_exception_handler(Problem, _on_problem)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_middleware(UnexpectedErrors)


class UnexpectedErrors:
    """Turns an exception that nobody expected into one log entry and one 500 answer; the server goes on.

    An exception after the answer has begun is raised on, for the server to cut the connection.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            if begun:
                raise
            _log.exception("unexpected error", path=shown(scope["path"]), error=type(error).__name__)
            problem = Problem(500, "unexpected error; the log holds its trace")
            await problem.response()(scope, receive, send)


async def _on_problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return error.response()


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    details = {
        404: "there is nothing at this path",
        405: f"this path does not take {shown(request.method, 16)}",
    }
    own_words = error.detail != _title(error.status_code)
    detail = error.detail if own_words else details.get(error.status_code, error.detail)
    return Problem(error.status_code, str(detail), headers=error.headers).response()


async def _on_invalid_request(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    malformed = first.get("type") == "json_invalid"
    place = [str(part) for part in first.get("loc", ()) if part not in ("body", "query", "path", "header")]
    field = shown(".".join(place)) if place and not malformed else None
    detail = "the body is not JSON" if malformed else shown(first.get("msg", "invalid"), 200)
    return Problem(400 if malformed else 422, detail, field=field).response()


def _title(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"
