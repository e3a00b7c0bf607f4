"""What the demo asks: questions about long documents that several people share, and conversations."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

QUESTIONS = 9
TURNS = 5
DOCUMENTS = ("contract", "manual", "report")
CHATS = ("Ann", "Ben")
DOCUMENT_WORDS = 520
ORDER_SEED = 4
MAX_TOKENS = 8

_TEXT = (
    "the and of to in that with for this from before after when every part line order water house work time year day "
    "people place number name hand head side small large long short good new old first last next other same different"
)
_WORDS = _TEXT.split()


class Ask(NamedTuple):
    """One request: which subject it belongs to, and what is new in it."""

    about: str
    subject: str
    new: str
    is_chat: bool


class Script:
    """The asks in a fixed order. What has been answered goes into the next turn of its conversation."""

    def __init__(self) -> None:
        self._texts = {name: _document(seed) for seed, name in enumerate(DOCUMENTS)}
        self._chats: dict[str, list[dict[str, str]]] = {
            name: [{"role": "system", "content": _document(100, DOCUMENT_WORDS // 2)}] for name in CHATS
        }

    def asks(self) -> Iterator[Ask]:
        """All of them; documents and conversations mixed."""
        subjects = [name for name in DOCUMENTS for _ in range(QUESTIONS)]
        subjects += [name for name in CHATS for _ in range(TURNS)]
        draw, numbers = random.Random(ORDER_SEED), dict.fromkeys(subjects, 0)
        draw.shuffle(subjects)
        for name in subjects:
            numbers[name] += 1
            new = " ".join(draw.choices(_WORDS, k=12))
            if name in CHATS:
                yield Ask(f"{name}'s chat, turn {numbers[name]}", name, new, True)
            else:
                yield Ask(f"{name}, question {numbers[name]}", name, new, False)

    def openings(self, words: int) -> list[str]:
        """How each document begins."""
        return [" ".join(text.split()[:words]) for text in self._texts.values()]

    def body(self, ask: Ask) -> dict[str, Any]:
        """The prompt as fields of a request: `messages` or `prompt`."""
        if ask.is_chat:
            return {"messages": [*self._chats[ask.subject], {"role": "user", "content": ask.new}]}
        return {"prompt": f"{self._texts[ask.subject]}\nQuestion: {ask.new}?\nAnswer:"}

    def answered(self, ask: Ask, text: str) -> None:
        """A conversation goes on from this answer."""
        if ask.is_chat:
            turn = [{"role": "user", "content": ask.new}, {"role": "assistant", "content": text}]
            self._chats[ask.subject] += turn


def _document(seed: int, words: int = DOCUMENT_WORDS) -> str:
    return " ".join(random.Random(seed).choices(_WORDS, k=words))
