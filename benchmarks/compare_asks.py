"""The requests that `compare_live` sends to two engines, in sections, each with what it is good for."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

Message = dict[str, str]

TOKENS = range(100, 4000)
"""Ids that both real servers' vocabularies have."""

WORDS = (
    "the cache of an engine holds what came before so a prompt that begins alike costs less to answer".split()  # noqa: SIM905
)
SYSTEMS = (208, 200, 67)
"""Lengths of system prompts: whole blocks, not whole, short."""


class Ask(NamedTuple):
    """One request: `tokens` after the prompt and the output of the ask number `after` (first `keep` tokens of these),
    or a text, or a chat."""

    tokens: list[int] = []  # noqa: RUF012  (never changed)
    after: int | None = None
    keep: int | None = None
    text: str | None = None
    chat: Sequence[Message] | None = None
    max_tokens: int = 1
    space: dict[str, str] = {}  # noqa: RUF012


class Section(NamedTuple):
    """Groups of asks; those of a group are sent at once. `alike`: nothing depends on outputs, so that events must be
    equal to the byte of their hashes."""

    name: str
    groups: list[list[Ask]]
    alike: bool = False


def sections(seed: int, spaces: Sequence[dict[str, str]]) -> list[Section]:
    """All of them, in the order in which they are to be sent to one pair of engines."""
    draw = Draw(seed)
    parts = [
        ("prompts only", _prompts_only(draw), True),
        ("shared system prompts", _shared(draw), False),
        ("conversations", _conversations(draw, sessions=8, turns=6), False),
        ("sent again and cut", _again(draw), False),
        ("namespaces", _namespaces(draw, spaces), False),
        ("texts and chats", _words(draw), False),
    ]
    alone = [Section(name, [[ask] for ask in asks], alike) for name, asks, alike in parts]
    return [*alone, Section("pairs at once", list(_pairs(draw)))]


class Draw:
    """Random lengths and tokens."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def tokens(self, low: int, high: int | None = None) -> list[int]:
        """As many as `low`, or from `low` to `high`."""
        return self.random.choices(TOKENS, k=low if high is None else self.random.randint(low, high))

    def number(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def words(self, count: int) -> str:
        return " ".join(self.random.choices(WORDS, k=count))


def _prompts_only(draw: Draw) -> list[Ask]:
    """Shared beginnings of every length; more than the cache holds."""
    trunks = [draw.tokens(300) for _ in range(4)]
    return [Ask(draw.random.choice(trunks)[: draw.number(1, 300)] + draw.tokens(0, 150)) for _ in range(70)]


def _shared(draw: Draw) -> list[Ask]:
    systems = [draw.tokens(length) for length in SYSTEMS]
    return [Ask(draw.random.choice(systems) + draw.tokens(20, 120), max_tokens=draw.number(1, 40)) for _ in range(40)]


def _conversations(draw: Draw, sessions: int, turns: int) -> list[Ask]:
    """Each turn is the one before, its output and something new. Sessions take turns at random."""
    system, asks = draw.tokens(120), list[Ask]()
    last: dict[int, int] = {}
    order = [session for session in range(sessions) for _ in range(turns)]
    draw.random.shuffle(order)
    for session in order:
        new = draw.tokens(10, 70) if session in last else system + draw.tokens(10, 70)
        asks.append(Ask(new, last.get(session), max_tokens=draw.number(2, 50)))
        last[session] = len(asks) - 1
    return asks


def _again(draw: Draw) -> list[Ask]:
    """Prompts of whole blocks and around them, sent again, and their beginnings, and their outputs taken up."""
    asks: list[Ask] = []
    for length in (96, 97, 95, 16, 17, 15, 1):
        first = len(asks)
        asks.append(Ask(draw.tokens(length), max_tokens=20))
        asks += [Ask([], first, keep, max_tokens=20) for keep in (length, max(1, length - 1), max(1, length // 2))]
        asks += [Ask([], first, max_tokens=3), Ask(draw.tokens(5), first, length + 17, max_tokens=3)]
    return asks


def _namespaces(draw: Draw, spaces: Sequence[dict[str, str]]) -> list[Ask]:
    trunk = draw.tokens(150)
    return [
        Ask(trunk + draw.tokens(0, 60), max_tokens=draw.number(1, 20), space=draw.random.choice(spaces))
        for _ in range(30)
    ]


def _words(draw: Draw) -> list[Ask]:
    """Texts that go on, and chats whose answers are given, not generated."""
    asks, text = list[Ask](), draw.words(30)
    for _ in range(8):
        text += " " + draw.words(20)
        asks.append(Ask(text=text))
    chat: list[Message] = [{"role": "system", "content": draw.words(60)}]
    for _ in range(8):
        chat = [*chat, {"role": "user", "content": draw.words(15)}]
        asks.append(Ask(chat=chat))
        chat = [*chat, {"role": "assistant", "content": draw.words(12)}]
    return asks


def _pairs(draw: Draw) -> Iterator[list[Ask]]:
    """Two conversations that share nothing, at once: each finds its own, whichever comes first.

    All of them fit into the cache together, so that nothing of theirs is evicted in an order that would be chance.
    """
    for pair in range(5):
        yield [Ask(draw.tokens(60, 90), max_tokens=draw.number(5, 15)) for _ in range(2)]
        yield [Ask(draw.tokens(20, 40), 4 * pair + at, max_tokens=5) for at in range(2)]
