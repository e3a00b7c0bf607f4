"""The bodies of the other POST requests: an instance to add, and the gateway's report of a finished request."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta
from pydantic import ValidationError

from app.instance_settings import InstanceSettings
from app.json_body import decode_json
from app.problems import Problem
from app.settings_file import faults

_ANY = msgspec.json.Decoder()
_Tokens = Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)] | None


class ErrorReport(msgspec.Struct, frozen=True):
    kind: str | None = None
    status: int | None = None
    detail: str | None = None


class FinishedReport(msgspec.Struct, frozen=True):
    """What the engine's usage said. All optional; null means not known."""

    cached_tokens: _Tokens = None
    prompt_tokens: _Tokens = None
    output_tokens: _Tokens = None
    error: ErrorReport | None = None


_FINISHED = msgspec.json.Decoder(FinishedReport)


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
    return report
