"""The two sides of `compare_live` in step: each ask to both, what they answer compared, then their events."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import httpx

from benchmarks.compare_asks import Ask, Section, sections
from benchmarks.compare_engine import Answered, ComparedEngine
from benchmarks.compare_events import BlockChange, Counted, Names, changes, counted, first_difference

SETTLE_S = 3.0
"""How long events may take to come out after the last answer."""


class Compared(NamedTuple):
    """A section's outcome: tokens, the blocks of the real engine's events (None: not compared), what differs."""

    section: str
    requests: int
    prompt: int
    real: int
    ours: int
    events: Counted | None
    differences: list[str]


class Sides:
    """A real engine and ours; both are emptied first."""

    def __init__(self, real: ComparedEngine, ours: ComparedEngine, settle_s: float = SETTLE_S) -> None:
        self._settle_s = settle_s
        self._real = real
        self._ours = ours
        self._names = Names(), Names()
        self._known: list[tuple[list[int], list[int]]] = []
        for side in (real, ours):
            try:
                side.empty()
            except httpx.HTTPStatusError as error:
                raise SystemExit(
                    f"{side.url} cannot be emptied ({error.response.status_code}): for vLLM set VLLM_SERVER_DEV_MODE=1"
                ) from None
        self._seen = len(real.batches()), len(ours.batches())

    def run(self, seed: int, spaces: Sequence[dict[str, str]]) -> Iterator[Compared]:
        """All sections."""
        for section in sections(seed, spaces):
            self._known = []
            yield self._section(section)

    def _section(self, section: Section) -> Compared:
        differences: list[str] = []
        pairs: list[tuple[Answered, Answered]] = []
        for group in section.groups:
            prompts = [self._prompts(ask) for ask in group]
            with ThreadPoolExecutor(len(group)) as threads:
                answers = list(threads.map(self._ask, group, prompts))
            for ask, (real, ours) in zip(group, answers, strict=True):
                if real[:2] != ours[:2]:
                    differences.append(f"ask {len(self._known)} {_about(ask)}: {real[:2]} there, {ours[:2]} here")
                pairs.append((real, ours))
                self._known.append((real.tokens, ours.tokens))
        alone = all(len(group) == 1 for group in section.groups)
        events, parted = self._events(alike=section.alike)
        if parted and alone:
            differences.append(f"events: {parted}")
        real_cached, ours_cached = (sum(pair[side].cached_tokens for pair in pairs) for side in (0, 1))
        prompt = sum(real.prompt_tokens for real, _ in pairs)
        return Compared(
            section.name, len(pairs), prompt, real_cached, ours_cached, events if alone else None, differences
        )

    def _prompts(self, ask: Ask) -> tuple[list[int], list[int]]:
        """The ids for either side."""
        if ask.text is not None or ask.chat is not None:
            tokens = self._real.tokenized(ask)
            return tokens, tokens
        before: tuple[list[int], list[int]] = ([], []) if ask.after is None else self._known[ask.after]
        return [*before[0][: ask.keep], *ask.tokens], [*before[1][: ask.keep], *ask.tokens]

    def _ask(self, ask: Ask, prompts: tuple[list[int], list[int]]) -> tuple[Answered, Answered]:
        words = ask.text is not None or ask.chat is not None
        real = self._real.words(ask) if words else self._real.ids(prompts[0], ask)
        return real, self._ours.ids(prompts[1], ask)

    def _events(self, *, alike: bool) -> tuple[Counted, str | None]:
        """What the events of this section come to, and how the two sides part."""
        end = time.monotonic() + self._settle_s
        while True:
            real, ours = self._new_changes()
            ranked = first_difference(self._names[0].ranked(real), self._names[1].ranked(ours))
            parted = first_difference(real, ours) if alike else ranked
            if parted is None or time.monotonic() > end:
                break
            time.sleep(0.2)
        self._seen = len(self._real.batches()), len(self._ours.batches())
        return counted(real), parted

    def _new_changes(self) -> tuple[list[BlockChange], list[BlockChange]]:
        real, ours = self._real, self._ours
        return changes(real.batches(self._seen[0]), real.face), changes(ours.batches(self._seen[1]), ours.face)


def _about(ask: Ask) -> str:
    space = f", {ask.space}" if ask.space else ""
    return f"(after {ask.after}, {len(ask.tokens)} new{space})"
