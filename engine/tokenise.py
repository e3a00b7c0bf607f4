"""Turning text into the token ids the engine will see, by asking an engine of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Literal, NamedTuple

import msgspec

from engine.address import EngineAddress
from engine.http_answer import Answer, EngineUnreachable, UnusableAnswer, fetch, json_object
from engine.http_client import HttpClient
from engine.inquiry import REFUSALS
from engine.loose_json import mapping
from engine.loose_json import text as as_text
from index.worker import EngineKind

_ANSWER_LIMIT_BYTES = 32 << 20
_DETAIL_LIMIT = 200
_TEMPLATE_STATUSES = (400, 422)


class CompletionText(NamedTuple):
    """The prompt of a completion: special tokens (BOS) are added as the engine does it."""

    prompt: str


class ChatText(NamedTuple):
    """A chat as in the OpenAI API: the template brings its own special tokens, none are added after it."""

    messages: Sequence[Mapping[str, object]]
    tools: Sequence[Mapping[str, object]] | None = None
    chat_template_kwargs: Mapping[str, object] | None = None
    add_generation_prompt: bool = True


class TokeniseError(Exception):
    """The text was not tokenised.

    kind `timeout`: no answer in time; `template`: the engine refused to render the chat, another engine of the model
    would too; `engine`: anything else. `detail` is a short text without control characters.
    """

    def __init__(self, kind: Literal["engine", "template", "timeout"], detail: str) -> None:
        self.kind: Literal["engine", "template", "timeout"] = kind
        self.detail = _shortened(detail)
        super().__init__(f"{kind}: {self.detail}")


async def tokenise(
    client: HttpClient, address: EngineAddress, model: str, text: CompletionText | ChatText, timeout_s: float
) -> list[int]:
    """The prompt's token ids, 0..2^32-1, by the engine's own `/tokenize`; TokeniseError when there are none."""
    try:
        request = msgspec.json.encode(_request(address.kind, model, text))
    except (UnicodeEncodeError, TypeError, RecursionError) as error:
        raise TokeniseError("engine", f"the text cannot be sent as JSON: {error}") from None
    try:
        answer = await fetch(
            client,
            address.url.rstrip("/") + "/tokenize",
            timeout_s,
            post=request,
            limit_bytes=_ANSWER_LIMIT_BYTES,
            key=address.key,
        )
    except EngineUnreachable as error:
        raise TokeniseError("timeout" if error.timed_out else "engine", str(error)) from error
    except UnusableAnswer as error:
        raise TokeniseError("engine", str(error)) from error
    if answer.status != HTTPStatus.OK:
        raise _refusal(answer, text)
    return _tokens(answer)


class _Tokens(msgspec.Struct):
    tokens: list[Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]]


def _request(kind: EngineKind, model: str, text: CompletionText | ChatText) -> dict[str, object]:
    """The engine's defaults, said aloud. SGLang always adds the generation prompt to a chat: it has no field for it."""
    if isinstance(text, CompletionText):
        return {"model": model, "prompt": text.prompt, "add_special_tokens": True}
    request: dict[str, object] = {"model": model, "messages": text.messages}
    if kind is EngineKind.VLLM:
        request |= {"add_generation_prompt": text.add_generation_prompt, "add_special_tokens": False}
    if text.tools is not None:
        request["tools"] = text.tools
    if text.chat_template_kwargs is not None:
        request["chat_template_kwargs"] = text.chat_template_kwargs
    return request


def _tokens(answer: Answer) -> list[int]:
    try:
        return msgspec.json.decode(answer.body, type=_Tokens).tokens
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TokeniseError("engine", f"/tokenize did not answer with token ids: {error}") from None


def _refusal(answer: Answer, text: CompletionText | ChatText) -> TokeniseError:
    if answer.status in REFUSALS:
        advice = "set the instance's api_key or api_key_file to the engine's --api-key"
        return TokeniseError(
            "engine", f"/tokenize answered {answer.status} {HTTPStatus(answer.status).phrase}: {advice}"
        )
    detail = f"/tokenize answered {answer.status}: {_message(answer)}"
    template = isinstance(text, ChatText) and (answer.status in _TEMPLATE_STATUSES or "template" in detail.lower())
    return TokeniseError("template" if template else "engine", detail)


def _message(answer: Answer) -> str:
    """vLLM: `{"error": {"message"}}`; SGLang: `{"message"}`; FastAPI: `{"detail"}`; else how the body begins."""
    try:
        body = json_object(answer.body, "/tokenize")
    except UnusableAnswer:
        return answer.body[: 4 * _DETAIL_LIMIT].decode("utf-8", "replace")
    places = (mapping(body.get("error")).get("message"), body.get("message"), body.get("detail"))
    return next(filter(None, map(as_text, places)), str(body))


def _shortened(detail: str) -> str:
    plain = " ".join("".join(c if c.isprintable() else " " for c in detail).split())
    return plain if len(plain) <= _DETAIL_LIMIT else plain[: _DETAIL_LIMIT - 1] + "…"
