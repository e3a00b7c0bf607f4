"""The objects of the OpenAI API: whole answers and the chunks of streams."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import NamedTuple

from deploy.engine.request import Output

Fields = dict[str, object]


class Kind(NamedTuple):
    """What completions and chats call things, and how a text stands in a choice: in an answer, in a chunk."""

    prefix: str
    whole: str
    chunk: str
    text: Callable[[str], Fields]
    delta: Callable[[str], Fields]


COMPLETION = Kind(
    "cmpl", "text_completion", "text_completion", lambda text: {"text": text}, lambda text: {"text": text}
)
CHAT = Kind(
    "chatcmpl",
    "chat.completion",
    "chat.completion.chunk",
    lambda text: {"message": {"role": "assistant", "content": text, "tool_calls": []}},
    lambda text: {"delta": {"content": text}},
)


class Answer(NamedTuple):
    """What is the same in all parts of one answer."""

    kind: Kind
    id: str
    model: str
    created: int

    def whole(self, choices: list[Fields], usage: Fields) -> Fields:
        """The answer in one piece."""
        return self._head(self.kind.whole) | {"choices": choices, "usage": usage}

    def chunk(self, choices: list[Fields], usage: Fields | None = None) -> Fields:
        """A part of a stream."""
        return self._head(self.kind.chunk) | {"choices": choices} | ({} if usage is None else {"usage": usage})

    def choice(self, index: int, text: str, end: Fields) -> Fields:
        """A choice of a whole answer."""
        return {"index": index, **self.kind.text(text), "logprobs": None, **end}

    def delta(self, output: Output, end: Fields) -> Fields:
        """The choice of a chunk."""
        return {"index": 0, **self.kind.delta(output.text), "logprobs": None, **end}

    def _head(self, name: str) -> Fields:
        return {"id": self.id, "object": name, "created": self.created, "model": self.model}


def new_answer(kind: Kind, model: str) -> Answer:
    """An answer with an id of its own."""
    return Answer(kind, f"{kind.prefix}-{uuid.uuid4().hex}", model, int(time.time()))


def role_choice() -> Fields:
    """The first chunk of a chat."""
    return {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}


def usage(prompt_tokens: int, output_tokens: int) -> Fields:
    """Usage without details."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + output_tokens,
        "completion_tokens": output_tokens,
    }
