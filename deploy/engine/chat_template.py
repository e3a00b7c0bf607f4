"""The chat template: turns as tokens. `<|begin|>`, then `<|turn|>ROLE⏎CONTENT<|close|>` per message.

Contents are plain text: a special token's name in a message is not the special token. A turn the engine has generated
and gets back in the next request is encoded to the tokens that it was, so its KV is found again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from deploy.engine.byte_pairs import BEGIN, CLOSE, TURN, BytePairs


class TemplateError(ValueError):
    """Why a chat cannot be rendered, in words for the client."""


def chat_tokens(
    tokenizer: BytePairs,
    messages: Sequence[Mapping[str, object]],
    tools: Sequence[object] | None = None,
    *,
    generation_prompt: bool = True,
) -> list[int]:
    """The prompt of a chat. Tools stand as JSON in a system turn before all others."""
    if not messages:
        raise TemplateError("messages must not be empty")
    tokens = [BEGIN]
    if tools:
        tokens += _turn(tokenizer, "system", "Tools: " + msgspec.json.encode(tools).decode())
    for message in messages:
        role = message.get("role")
        if not isinstance(role, str) or not role:
            raise TemplateError("every message needs a role")
        tokens += _turn(tokenizer, role, _content(message))
    if generation_prompt:
        tokens += _head(tokenizer, "assistant")
    return tokens


def _head(tokenizer: BytePairs, role: str) -> list[int]:
    return [TURN, *tokenizer.encode_plain(f"{role}\n")]


def _turn(tokenizer: BytePairs, role: str, content: str) -> list[int]:
    return [*_head(tokenizer, role), *tokenizer.encode_plain(content), CLOSE]


def _content(message: Mapping[str, object]) -> str:
    """A message's text: a text, none (an assistant's tool calls), or parts of which all are texts."""
    content = message.get("content")
    calls = message.get("tool_calls")
    called = msgspec.json.encode(calls).decode() if calls else ""
    if content is None:
        return called
    if isinstance(content, str):
        return content + called
    if isinstance(content, list):
        return "".join(map(_part, content)) + called
    raise TemplateError("content must be a text or a list of parts")


def _part(part: object) -> str:
    if isinstance(part, dict) and part.get("type", "text") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise TemplateError("this model takes text only")
