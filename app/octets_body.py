"""A routing request as `application/octet-stream`: the body is the prompt, all other fields are query parameters."""

from __future__ import annotations

from urllib.parse import parse_qsl

import msgspec

from app.checked_fields import request_of
from app.json_body import decode_json, field_problem
from app.problems import Problem
from app.route_fields import PROMPT_FIELDS, RouteFields
from app.route_request import KeptRequests, RouteRequest

_ANY = msgspec.json.Decoder()
_TEXT_FIELDS = frozenset({"model", "lora", "cache_salt", "extra_key", "session_id"})
_FIELDS = frozenset(RouteFields.__struct_fields__)
_MAX_QUERY_FIELDS = 64
_QUERIES = KeptRequests()


def octets_request(body: bytes, query: bytes) -> RouteRequest:
    """The request of token ids in a body, with all other fields in the raw query string. Raises Problem 422."""
    kept = _QUERIES.request(query, body)
    if kept is not None:
        _check_octets(body)
        return kept
    fields = _fields_of(query)
    _check_octets(body)
    request = request_of(fields, body)
    _QUERIES.keep(query, request)
    return request


def _check_octets(body: bytes) -> None:
    if not body:
        raise Problem(422, "the body holds no token ids", field="token_ids")
    if len(body) % 4:
        raise Problem(422, f"the body must be token ids of 4 bytes each; it has {len(body)} bytes", field="token_ids")


def _fields_of(query: bytes) -> RouteFields:
    """The fields in a query string: texts as they are, everything else as JSON (flags also as 1 and 0)."""
    try:
        pairs = parse_qsl(query.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MAX_QUERY_FIELDS)
    except UnicodeDecodeError:
        raise Problem(422, "the query string must be UTF-8, percent-encoded") from None
    except ValueError:
        raise Problem(422, f"the query string has more than {_MAX_QUERY_FIELDS} fields") from None
    values: dict[str, object] = {}
    for name, text in pairs:
        if name in PROMPT_FIELDS:
            raise Problem(422, "the body is the prompt; no other can be given", field=name)
        if name in values:
            raise Problem(422, "the field is given twice; a list is one JSON text", field=name)
        if name in _FIELDS:
            plain = name in _TEXT_FIELDS or (name == "lora_path" and not text.startswith("["))
            values[name] = text if plain else _query_value(name, text)
    try:
        return msgspec.convert(values, RouteFields)
    except msgspec.ValidationError as error:
        raise field_problem(str(error)) from None


def _query_value(name: str, text: str) -> object:
    if text in ("0", "1") and name in ("dry_run", "explain", "strict", "echo"):
        return text == "1"
    try:
        value: object = decode_json(text.encode(), _ANY)
    except Problem as problem:
        raise Problem(422, problem.detail.replace("the body", "the query parameter", 1), field=name) from None
    return value
