"""The fields of a routing request as they are written: types, bounds and meanings, for decoding and for the docs."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

MAX_TOKEN_ID = 0xFFFF_FFFF
PROMPT_FIELDS = ("token_ids", "prompt", "messages")
"""Exactly one of them is the prompt of a JSON request."""
_INT64 = 1 << 63

InstanceNames = Annotated[list[Annotated[str, Meta(max_length=2048)]], Meta(max_length=4096)]
Label = Annotated[str, Meta(max_length=256)]


class MultimodalField(msgspec.Struct):
    """One image, audio or video item in the prompt."""

    hash: Annotated[str, Meta(min_length=1, max_length=256, description="the engine's identifier of the item")]
    offset: Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID, description="its first token")]
    length: Annotated[int, Meta(ge=1, le=MAX_TOKEN_ID, description="its number of tokens")]


class RouteFields(msgspec.Struct):
    """Exactly one of token_ids, prompt and messages is needed. null means absent; other fields are ignored."""

    # `cache_salt` and `session_id` are texts without a bound of ours, as the engines read them. vLLM 0.32 takes salts
    # of up to 128 characters without "@", "/", "\\" and NUL (entrypoints/generate/base/protocol.py:validate_cache_salt)
    # and any session (entrypoints/openai/chat_completion/protocol.py); SGLang 0.5.22 takes any of both
    # (srt/managers/io_struct.py). Which engine will be asked is not known here: one that refuses a salt says so itself.
    # An empty one is none, as in SGLang's `_normalize_cache_salt` and vLLM's `_get_session_id`.

    model: Annotated[
        str, Meta(min_length=1, max_length=512, description="base model, or an adapter that an instance serves")
    ]
    token_ids: Annotated[
        list[int] | None, Meta(description="the prompt as the engine will see it: ids of 0..4294967295, at least one")
    ] = None
    prompt: Annotated[
        str | list[int] | None, Meta(description="text, tokenised as the engine does it; a list of ints: token_ids")
    ] = None
    messages: Annotated[
        list[dict[str, Any]] | None, Meta(description="OpenAI chat messages, rendered as the engine does it")
    ] = None
    tools: Annotated[list[dict[str, Any]] | None, Meta(description="with messages, as in OpenAI chat")] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, Meta(description="with messages")] = None
    add_generation_prompt: Annotated[bool | None, Meta(description="with messages; null: true")] = None
    lora: Annotated[
        Annotated[str, Meta(max_length=512)] | None, Meta(description="adapter name, if model is the base model")
    ] = None
    lora_path: Annotated[
        Annotated[str, Meta(max_length=512)] | list[Annotated[str, Meta(max_length=512)] | None] | None,
        Meta(description="SGLang's field for the adapter's name; instances of vLLM do not take it"),
    ] = None
    cache_salt: Annotated[
        str | None,
        Meta(description="the request's cache salt; empty: none; of any length: what is too long the engine refuses"),
    ] = None
    extra_key: Annotated[
        Annotated[str, Meta(max_length=1024)] | None, Meta(description="SGLang namespace; empty: none")
    ] = None
    mm_items: Annotated[
        Annotated[list[MultimodalField], Meta(max_length=4096)] | None,
        Meta(description="multimodal items inside the prompt, not overlapping"),
    ] = None
    candidates: Annotated[
        InstanceNames | None, Meta(description="only these instances, by id or url; []: nobody is eligible")
    ] = None
    exclude: Annotated[InstanceNames | None, Meta(description="not these instances, by id or url")] = None
    selector: Annotated[
        Annotated[dict[Label, Label], Meta(max_length=64)] | None, Meta(description="only instances with these labels")
    ] = None
    session_id: Annotated[str | None, Meta(description="for affinity; of any length; empty: none")] = None
    max_tokens: Annotated[
        Annotated[int, Meta(ge=0, le=0x7FFF_FFFF)] | None, Meta(description="expected output, for load")
    ] = None
    priority: Annotated[
        Annotated[int, Meta(ge=-_INT64, le=_INT64 - 1)] | None, Meta(description="as in the engine request; default 0")
    ] = None
    dry_run: Annotated[bool | None, Meta(description="decide, but leave no trace; default false")] = None
    explain: Annotated[bool | None, Meta(description="add all candidates to the answer; default false")] = None
    strict: Annotated[
        bool | None, Meta(description="504 or 422 when text cannot be tokenised, instead of routing it by load")
    ] = None
    prompt_logprobs: Annotated[Any, Meta(description="not null: the engine will not read its cache")] = None
    echo: Annotated[Any, Meta(description="true with logprobs, or with messages: likewise")] = None
    logprobs: Annotated[Any, Meta(description="see echo")] = None
