"""The bodies of the other POST requests: an instance to add, and the gateway's report of a finished request."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple, get_args

import msgspec
from msgspec import Meta
from pydantic import ValidationError

from app.instance_settings import InstanceSettings
from app.json_body import decode_json
from app.problems import Problem
from app.settings_file import faults
from app.shown import shown

ErrorKind = Literal["connect", "timeout", "status", "aborted"]
ERROR_KINDS: tuple[ErrorKind, ...] = get_args(ErrorKind)
MAX_ERROR_DETAIL = 1000

_ANY = msgspec.json.Decoder()
_Tokens = Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)] | None


class ErrorBody(msgspec.Struct, frozen=True):
    """How a request failed, as JSON says it.

    connect: no connection, whether refused or in silence, or one that the engine broke before its answer's end.
    timeout: connected, and then no answer, or no more of it, in time. status: the engine answered with `status`.
    aborted: the client left, the engine did nothing wrong.
    """

    kind: Annotated[str, Meta(extra_json_schema={"enum": list(ERROR_KINDS)})]
    status: Annotated[int, Meta(extra_json_schema={"minimum": 100, "maximum": 599})] | None = None
    detail: Annotated[str, Meta(max_length=MAX_ERROR_DETAIL)] | None = None


class FinishedBody(msgspec.Struct, frozen=True):
    """What the engine's usage said, and how the request failed if it did. All optional; null means not known.

    An `error` of true says that it failed and nobody knows how; false is null.
    """

    cached_tokens: _Tokens = None
    prompt_tokens: _Tokens = None
    output_tokens: _Tokens = None
    error: ErrorBody | bool | None = None


class ErrorReport(NamedTuple):
    """How a request failed: `kind` is None where the gateway knows only that it did.

    `status` is there whenever `kind` is "status"; with other kinds it is what the gateway saw, and says nothing.
    """

    kind: ErrorKind | None
    status: int | None = None
    detail: str | None = None


class FinishedReport(NamedTuple):
    """A report that was read: tokens as the engine's usage said, None where not known; `error` None: it succeeded."""

    cached_tokens: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    error: ErrorReport | None = None


_FINISHED = msgspec.json.Decoder(FinishedBody)


def read_instance(body: bytes) -> InstanceSettings:
    """An instance in the settings file's form, as JSON. Raises Problem 400 or 422, naming the first field at fault."""
    value = decode_json(body, _ANY)
    if not isinstance(value, dict):
        raise Problem(422, "the body must be a JSON object")
    try:
        return InstanceSettings.model_validate(value)
    except ValidationError as error:
        found = faults(error, InstanceSettings)
        detail = "; ".join(f"{fault.key}: {fault.allowed}" if fault.key else fault.allowed for fault in found)
        raise Problem(422, detail, field=found[0].key or None) from None


def read_finished(body: bytes) -> FinishedReport:
    """The report in a body; an empty body says that nothing is known. Raises Problem 400 or 422."""
    if not body:
        return FinishedReport()
    report = decode_json(body, _FINISHED)
    cached, prompt = report.cached_tokens, report.prompt_tokens
    if cached is not None and prompt is not None and cached > prompt:
        raise Problem(422, "more tokens from the cache than the prompt has", field="cached_tokens")
    return FinishedReport(cached, prompt, report.output_tokens, _error(report.error))


def _error(given: ErrorBody | bool | None) -> ErrorReport | None:
    if given is None or given is False:
        return None
    if given is True:
        return ErrorReport(None)
    if given.kind not in ERROR_KINDS:
        raise Problem(422, f"{shown(given.kind)} is not one of {', '.join(ERROR_KINDS)}", field="error.kind")
    if given.status is None and given.kind == "status":
        raise Problem(422, "null is not a number from 100 to 599, as kind status needs it", field="error.status")
    if given.status is not None and not 100 <= given.status <= 599:
        raise Problem(422, f"{shown(given.status)} is not from 100 to 599", field="error.status")
    return ErrorReport(given.kind, given.status, given.detail)
