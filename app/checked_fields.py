"""From a routing request's fields, each right by itself, to what is asked."""

from __future__ import annotations

from itertools import pairwise

from app.problems import Problem
from app.route_fields import MultimodalField, RouteFields
from app.route_request import RouteRequest
from index.prompt import MultimodalItem


def request_of(fields: RouteFields, tokens: bytes | None) -> RouteRequest:
    """The request; `tokens` is None for a text. Raises Problem 422 for items that overlap. Empty texts mean none."""
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
        lora_path=_lora_path(fields),
    )


def _lora_path(fields: RouteFields) -> str | None:
    """The adapter of the one prompt; a list names one for each prompt, so all must be the same."""
    given = fields.lora_path
    names = {name or None for name in given} if isinstance(given, list) else {given or None}
    if len(names) > 1:
        raise Problem(422, "one prompt has one adapter; the list names several", field="lora_path")
    name = next(iter(names), None)
    if name is not None and fields.lora and fields.lora != name:
        raise Problem(422, "names another adapter than lora", field="lora_path")
    return name


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


def _wants_prompt_logprobs(fields: RouteFields) -> bool:
    """As vLLM's `to_sampling_params`: echo asks for them too, in chat always (`top_logprobs` is 0 there by default)."""
    if fields.prompt_logprobs is not None:
        return True
    asked = fields.logprobs is not None and fields.logprobs is not False
    return fields.echo is True and (asked or fields.messages is not None)
