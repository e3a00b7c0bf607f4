"""What the demo prints: its decisions as a table, and a console that is plain when it is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from deploy.recording import Prompt

PLAIN_WIDTH = 100
REASONS = {
    "prefix": "holds the longest reusable prefix",
    "load": "the holder of a longer prefix is overloaded",
    "cold": "nobody holds any of it, so load decides",
    "affinity": "the session was there before",
    "only": "there is no other instance",
    "fallback": "there is no trusted index",
}


class Asked(NamedTuple):
    """A prompt and what `POST /route` answered, explanation included."""

    prompt: Prompt
    answer: dict[str, Any]

    @property
    def candidates(self) -> dict[str, dict[str, Any]]:
        """By instance; every instance of the demo has one rank."""
        return {one["instance"]: one for one in self.answer["candidates"]}


def console() -> Console:
    """Colours and spinners on a terminal; elsewhere plain lines without control sequences."""
    terminal = sys.stdout.isatty()
    return Console(force_terminal=terminal, width=None if terminal else PLAIN_WIDTH, highlight=False)


def decisions(asked: Iterable[Asked], instances: Sequence[str]) -> Table:
    """A row per prompt: where it went and why, and what each instance holds of it."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("prompt", no_wrap=True)
    for name in ("tokens", "matched", "reusable"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("sent to", no_wrap=True)
    table.add_column("reason", no_wrap=True)
    for name in instances:
        table.add_column(name, justify="right", no_wrap=True, style="dim")
    for one in asked:
        answer, candidates = one.answer, one.candidates
        numbers = [str(answer[field]) for field in ("prompt_tokens", "matched_tokens", "reusable_tokens")]
        held = [str(candidates[name]["matched_tokens"]) for name in instances]
        table.add_row(one.prompt.about, *numbers, answer["instance"], answer["reason"], *held)
    return table


def legend(asked: Iterable[Asked]) -> str:
    """The reasons that occur, in words."""
    seen = {one.answer["reason"] for one in asked}
    return "\n".join(f"{reason}: {words}" for reason, words in REASONS.items() if reason in seen)
