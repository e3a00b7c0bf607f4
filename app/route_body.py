"""From the bytes of a routing request to a RouteRequest, or to the Problem that says what is wrong with it."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType
from typing import Literal

import msgspec

from app.checked_fields import request_of
from app.json_body import decode_json
from app.octets_body import octets_request
from app.problems import Problem
from app.route_fields import MAX_TOKEN_ID, PROMPT_FIELDS, RouteFields
from app.route_request import KeptRequests, RouteRequest
from index.native import CORE
from index.prompt import MultimodalItem

_DECODER = msgspec.json.Decoder(RouteFields)
_ENVELOPES = KeptRequests()


def read_route_request(
    body: bytes, content_type: str | None, query: bytes, max_prompt_tokens: int, core: ModuleType | None = CORE.module
) -> RouteRequest:
    """The request in a body of either form. Raises Problem: 400 not JSON, 415 content type, 422 a field.

    `query` is the raw query string; it counts only for `application/octet-stream`, where it holds all other fields.
    `core` reads token lists faster where there is one; the answer does not depend on it.
    """
    json = body_form(content_type) == "json"
    request = _json_request(body, core) if json else octets_request(body, query)
    if request.tokens is not None:
        check_prompt(request.tokens, request.mm_items, max_prompt_tokens)
    return request


@lru_cache(maxsize=64)
def body_form(content_type: str | None) -> Literal["json", "octets"]:
    """The form a content type stands for; none at all means JSON. Raises Problem 415 for others."""
    media_type, _, parameters = (content_type or "application/json").lower().partition(";")
    media_type = media_type.strip()
    if media_type == "application/octet-stream":
        return "octets"
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        raise Problem(
            415, "the content type must be application/json or application/octet-stream", field="content-type"
        )
    charset = parameters.partition("charset=")[2].partition(";")[0].strip().strip('"')
    if charset not in ("", "utf-8", "utf8", "us-ascii"):
        raise Problem(415, "JSON must be UTF-8", field="content-type")
    return "json"


def check_prompt(tokens: bytes, mm_items: Sequence[MultimodalItem], max_tokens: int) -> None:
    """Refuse (Problem 422) a prompt over the limit and items that reach beyond its end."""
    length = len(tokens) >> 2
    if length > max_tokens:
        raise Problem(422, f"the prompt has {length} tokens; at most {max_tokens} are taken", field="token_ids")
    if mm_items and mm_items[-1].offset + mm_items[-1].length > length:
        raise Problem(422, "an item reaches beyond the end of the prompt", field="mm_items")


def _json_request(body: bytes, core: ModuleType | None) -> RouteRequest:
    found = core.token_list(body) if core is not None else None
    kept = None if found is None else _ENVELOPES.request(found[1], found[0])
    if kept is not None:
        return kept
    fields, tokens = _fields_and_tokens(body, found)
    request = request_of(fields, tokens)
    if found is not None and tokens is found[0]:
        _ENVELOPES.keep(found[1], request)
    return request


def _fields_and_tokens(body: bytes, found: tuple[bytes, bytes] | None) -> tuple[RouteFields, bytes | None]:
    """The fields of a JSON request and its token ids, where `found` is what the native core reads of it.

    That is the list that the body means if the rest of the body is right. If not, the whole body says why.
    """
    if found is not None:
        tokens, envelope = found
        try:
            fields = decode_json(envelope, _DECODER)
            _tokens_of(fields)
        except Problem:
            pass
        else:
            return fields, tokens
    fields = decode_json(body, _DECODER)
    return fields, _tokens_of(fields)


def _tokens_of(fields: RouteFields) -> bytes | None:
    """The token ids of a JSON request, None for text. Refuses all but exactly one non-empty prompt."""
    given = [name for name in PROMPT_FIELDS if getattr(fields, name) is not None]
    if len(given) != 1:
        detail = f"exactly one of token_ids, prompt and messages is needed, not {' and '.join(given) or 'none'}"
        raise Problem(422, detail, field=given[1] if given else "token_ids")
    value = getattr(fields, given[0])
    if not value:
        raise Problem(422, "must not be empty", field=given[0])
    if given[0] == "messages" or isinstance(value, str):
        return None
    return _packed(value, given[0])


def _packed(ids: list[int], field: str) -> bytes:
    try:
        packed = array("I", ids)
    except OverflowError:
        wrong = next(index for index, token in enumerate(ids) if not 0 <= token <= MAX_TOKEN_ID)
        raise Problem(422, f"a token id must be 0..{MAX_TOKEN_ID}", field=f"{field}[{wrong}]") from None
    assert packed.itemsize == 4
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
