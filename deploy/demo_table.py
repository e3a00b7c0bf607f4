"""What the demo prints: decisions and comparisons as tables, and a console that is plain when it is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from deploy.demo_engines import Delivered

PLAIN_WIDTH = 100
REASONS = {
    "prefix": "holds the longest reusable prefix",
    "load": "the holder of a longer prefix is overloaded",
    "cold": "nobody holds any of it, so load decides",
    "affinity": "the session was there before",
    "only": "there is no other instance",
    "fallback": "there is no trusted index",
}


class Routed(NamedTuple):
    """A request, what `POST /route` answered, and what the chosen engine delivered."""

    about: str
    answer: dict[str, Any]
    delivered: Delivered


class Totals(NamedTuple):
    """A run over all requests."""

    hit_rate: float
    mean_s: float
    p90_s: float


def totals(run: Sequence[Delivered]) -> Totals:
    """What the engines reported, and the times to the first token."""
    times = sorted(one.first_token_s for one in run)
    cached, prompt = sum(one.cached_tokens for one in run), sum(one.prompt_tokens for one in run)
    return Totals(cached / prompt, sum(times) / len(times), times[int(0.9 * (len(times) - 1) + 0.5)])


def console() -> Console:
    """Colours and spinners on a terminal; elsewhere plain lines without control sequences."""
    terminal = sys.stdout.isatty()
    return Console(force_terminal=terminal, width=None if terminal else PLAIN_WIDTH, highlight=False)


def decisions(routed: Iterable[Routed]) -> Table:
    """A row per request: where it went and why, what the router promised, what the engine delivered."""
    table = _table("request", ("tokens",), ("sent to", "reason"), ("reusable", "cached", "first token ms"))
    for one in routed:
        answer = one.answer
        table.add_row(
            one.about,
            str(answer["prompt_tokens"]),
            answer["instance"],
            answer["reason"],
            str(answer["reusable_tokens"]),
            str(one.delivered.cached_tokens),
            f"{one.delivered.first_token_s * 1000:.0f}",
        )
    return table


def comparison(runs: Mapping[str, Totals]) -> Table:
    """A row per way of routing."""
    table = _table("", ("hit rate", "first token: mean ms", "p90 ms"), (), ())
    for name, total in runs.items():
        table.add_row(name, f"{total.hit_rate:.0%}", f"{total.mean_s * 1000:.0f}", f"{total.p90_s * 1000:.0f}")
    return table


def legend(routed: Iterable[Routed]) -> str:
    """The reasons that occur, in words."""
    seen = {one.answer["reason"] for one in routed}
    return "\n".join(f"{reason}: {words}" for reason, words in REASONS.items() if reason in seen)


def _table(first: str, numbers: Sequence[str], words: Sequence[str], more_numbers: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(first, no_wrap=True)
    for names, justify in ((numbers, "right"), (words, "left"), (more_numbers, "right")):
        for name in names:
            table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    return table
