"""Whether a prefix is worth its holder's queue of prompts to be computed, counted in tokens (docs/adr/0008)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple


class Queue(NamedTuple):
    """One worker in line for a request, in tokens: computed before it, per weight, and what it would not compute."""

    backlog: float
    saved: int


def outweighed(queues: Sequence[Queue], prompt_tokens: int, weight: float) -> list[bool]:
    """Whose prefix is not worth the queue.

    One loses when another's backlog is less by so much that, each token of it counted `weight`, that is more than
    the tokens saved by the longer prefix and `weight` times the prompt. The last part keeps small differences from
    deciding. At least one is never outweighed.
    """
    shortest: dict[int, float] = {}
    for backlog, saved in queues:
        shortest[saved] = min(shortest.get(saved, inf), backlog)
    least = min(shortest.values(), default=0.0)
    return [
        backlog > least + prompt_tokens and _loses(backlog - prompt_tokens, saved, shortest, weight)
        for backlog, saved in queues
    ]


def _loses(backlog: float, saved: int, shortest: Mapping[int, float], weight: float) -> bool:
    return any(weight * (backlog - other) > max(0, saved - less) for less, other in shortest.items())
