"""Random requests on a cache, one small step at a time, for properties that must hold after every step."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from deploy.engine.cache import KVCache, KVSequence, Namespace

SEGMENT = 20
"""Tokens per segment. Prompts are made of few segments, so that prefixes are shared and copies occur."""


def prompt_of(segments: tuple[int, ...], length: int) -> list[int]:
    """The first `length` tokens of some segments."""
    return [100 * segment + at for segment in segments for at in range(SEGMENT)][:length]


@st.composite
def prompts(draw: st.DrawFn) -> list[int]:
    segments = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    cut = draw(st.sampled_from([0, 0, 1, 4, 9, SEGMENT - 1]))
    return prompt_of(tuple(segments), SEGMENT * len(segments) - cut)


@dataclass(frozen=True)
class Start:
    tokens: list[int]
    namespace: Namespace
    limit: int | None


@dataclass(frozen=True)
class Step:
    """The running request at `which` gets `count` tokens further: the next chunk, or a decode step."""

    which: int
    count: int
    token: int


@dataclass(frozen=True)
class Finish:
    which: int
    keep: bool


@dataclass(frozen=True)
class Clear:
    """Drop all requests and the cache."""


Action = Start | Step | Finish | Clear


def actions(namespaces: list[Namespace]) -> st.SearchStrategy[list[Action]]:
    """Scripts long enough to fill a cache of about 100 tokens several times."""
    start = st.builds(Start, prompts(), st.sampled_from(namespaces), st.sampled_from([None, None, 5, 16, 30]))
    step = st.builds(Step, st.integers(0, 9), st.sampled_from([1, 1, 7, 16, 30]), st.integers(100, 101))
    finish = st.builds(Finish, st.integers(0, 9), st.sampled_from([True, True, False]))
    clear = st.builds(Clear)

    def of_kind(kind: int) -> st.SearchStrategy[Action]:
        return start if kind < 35 else step if kind < 65 else finish if kind < 98 else clear

    return st.lists(st.integers(0, 99).flatmap(of_kind), min_size=25, max_size=60)


Text = tuple[int, Namespace, int]
"""What a token's KV depends on: the text before it (by its hash), the namespace, the token."""


@dataclass
class Workload:
    """Does actions on a cache, as a scheduler and a model would.

    `running` are the requests in flight, `asked` every prompt and grown text so far, `memory` what was computed into
    each slot.
    """

    cache: KVCache
    running: list[KVSequence] = field(default_factory=list)
    asked: dict[tuple[tuple[int, ...], Namespace], None] = field(default_factory=dict)
    memory: dict[int, Text] = field(default_factory=dict)

    def do(self, action: Action) -> None:
        match action:
            case Start():
                self._start(action)
            case Step() if self.running:
                self._step(self.running[action.which % len(self.running)], action)
            case Finish() if self.running:
                self.cache.finish(self.running.pop(action.which % len(self.running)), keep=action.keep)
            case Clear():
                assert self.cache.clear() == (not self.running)
                self.drop_all()
                assert self.cache.clear()
            case _:
                pass

    def drop_all(self) -> None:
        while self.running:
            self.cache.finish(self.running.pop(), keep=False)

    def _start(self, action: Start) -> None:
        self._remember(action.tokens, action.namespace)
        expected = self.cache.peek(action.tokens, action.namespace)
        sequence = self.cache.start(action.tokens, action.namespace, limit=action.limit)
        if sequence is not None:
            assert sequence.cached_tokens == expected
            self.running.append(sequence)
            self._compute(sequence)

    def _step(self, sequence: KVSequence, action: Step) -> None:
        if sequence.computed_tokens == len(sequence.tokens):
            sequence.tokens.append(action.token)
        rest = len(sequence.tokens) - sequence.computed_tokens
        if self.cache.extend(sequence, min(rest, action.count)):
            self.cache.checkpoint(sequence)
            self._compute(sequence)
        self._remember(sequence.tokens, sequence.namespace)

    def _compute(self, sequence: KVSequence) -> None:
        """The forward pass: it reads what lies before the pending positions and writes those."""
        texts = texts_of(sequence)
        for at in range(sequence.computed_tokens):
            assert self.memory[sequence.slots[at]] == texts[at], f"position {at} reads foreign KV"
        for at in sequence.pending:
            self.memory[sequence.slots[at]] = texts[at]
        self.cache.computed(sequence)

    def _remember(self, tokens: list[int], namespace: Namespace) -> None:
        self.asked[tuple(tokens), namespace] = None


def texts_of(sequence: KVSequence) -> list[Text]:
    """For each token what its KV depends on."""
    space, texts, before = sequence.namespace, [], 0
    for at, token in enumerate(sequence.tokens):
        image = next((item for item in space.mm_items if item.offset <= at < item.offset + item.length), None)
        text = (before, space._replace(mm_items=(image,) if image else ()), token)
        texts.append(text)
        before = hash(text)
    return texts
