"""From the bytes of a routing request to a RouteRequest, or to the Problem that says what is wrong with it."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from types import ModuleType
from typing import Literal
from urllib.parse import parse_qsl

import msgspec

from app.json_body import decode_json, field_problem
from app.problems import Problem
from app.route_fields import MAX_TOKEN_ID, MultimodalField, RouteFields
from app.route_request import KeptRequests, RouteRequest
from index.native import CORE
from index.prompt import MultimodalItem

_DECODER = msgspec.json.Decoder(RouteFields)
_ANY = msgspec.json.Decoder()
_PROMPT_FIELDS = ("token_ids", "prompt", "messages")
_TEXT_FIELDS = frozenset({"model", "lora", "cache_salt", "extra_key", "session_id"})
_FIELDS = frozenset(RouteFields.__struct_fields__)
_MAX_QUERY_FIELDS = 64


_ENVELOPES = KeptRequests()
_QUERIES = KeptRequests()


def read_route_request(
    body: bytes, content_type: str | None, query: bytes, max_prompt_tokens: int, core: ModuleType | None = CORE.module
) -> RouteRequest:
    """The request in a body of either form. Raises Problem: 400 not JSON, 415 content type, 422 a field.

    `query` is the raw query string; it counts only for `application/octet-stream`, where it holds all other fields.
    `core` reads token lists faster where there is one; the answer does not depend on it.
    """
    json = body_form(content_type) == "json"
    request = _json_request(body, core) if json else _octets_request(body, query)
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
    request = _request(fields, tokens)
    if found is not None and tokens is found[0]:
        _ENVELOPES.keep(found[1], request)
    return request


def _octets_request(body: bytes, query: bytes) -> RouteRequest:
    kept = _QUERIES.request(query, body)
    if kept is not None:
        _check_octets(body)
        return kept
    fields = _fields_of(query)
    _check_octets(body)
    request = _request(fields, body)
    _QUERIES.keep(query, request)
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
    given = [name for name in _PROMPT_FIELDS if getattr(fields, name) is not None]
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
        if name in _PROMPT_FIELDS:
            raise Problem(422, "the body is the prompt; no other can be given", field=name)
        if name in values:
            raise Problem(422, "the field is given twice; a list is one JSON text", field=name)
        if name in _FIELDS:
            values[name] = text if name in _TEXT_FIELDS else _query_value(name, text)
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


def _items(fields: list[MultimodalField] | None) -> tuple[MultimodalItem, ...]:
    if not fields:
        return ()
    items = sorted(
        (MultimodalItem(item.hash, item.offset, item.length) for item in fields), key=lambda item: item.offset
    )
    for before, after in pairwise(items):
        if before.offset + before.length > after.offset:
            raise Problem(422, "two items overlap", field="mm_items")
    return tuple(items)


def _request(fields: RouteFields, tokens: bytes | None) -> RouteRequest:
    return RouteRequest(
        model=fields.model,
        tokens=tokens,
        prompt=fields.prompt if isinstance(fields.prompt, str) else None,
        messages=fields.messages,
        tools=fields.tools,
        chat_template_kwargs=fields.chat_template_kwargs,
        add_generation_prompt=fields.add_generation_prompt is not False,
        lora=fields.lora or None,
        cache_salt=fields.cache_salt or None,
        extra_key=fields.extra_key or None,
        mm_items=_items(fields.mm_items),
        candidates=None if fields.candidates is None else tuple(fields.candidates),
        exclude=tuple(fields.exclude or ()),
        selector=fields.selector or {},
        session_id=fields.session_id or None,
        max_tokens=fields.max_tokens,
        priority=fields.priority or 0,
        dry_run=fields.dry_run is True,
        explain=fields.explain is True,
        strict=fields.strict is True,
        reads_cache=not _wants_prompt_logprobs(fields),
    )


def _wants_prompt_logprobs(fields: RouteFields) -> bool:
    """As vLLM's `to_sampling_params`: echo asks for them too, in chat always (`top_logprobs` is 0 there by default)."""
    if fields.prompt_logprobs is not None:
        return True
    asked = fields.logprobs is not None and fields.logprobs is not False
    return fields.echo is True and (asked or fields.messages is not None)
