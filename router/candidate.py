"""What a decision is made from and what it says: candidates with their matches and loads, the request, the choice."""

from __future__ import annotations

from typing import Literal, NamedTuple

from index.worker import Trust, Worker

Reason = Literal["prefix", "load", "cold", "affinity", "only", "fallback"]
"""Why a worker was chosen; the order of precedence is in `router.route`."""


class WorkerLoad(NamedTuple):
    """An engine's own report. None (or a value that is not finite, or negative) means not known, never zero.

    `sampled_at` is when it was read, on the clock of the `now` arguments; None or NaN means
    about `RouterSettings.load_window_s` ago. Requests assigned after it are counted on top.
    """

    running: float | None
    waiting: float | None
    kv_usage: float | None
    sampled_at: float | None = None


UNKNOWN_LOAD = WorkerLoad(None, None, None)


class Candidate(NamedTuple):
    """One worker as the decision sees it. `matched`, `reusable` and `by_medium` are in tokens.

    `why` is None for an eligible worker, else the reason in words. Eligible workers have a weight above zero.
    """

    worker: Worker
    url: str
    weight: float
    matched: int
    reusable: int
    by_medium: tuple[int, int, int, int]
    trust: Trust
    load: WorkerLoad
    why: str | None


class RouteQuery(NamedTuple):
    """What the decision needs of a request. `tokens` are little-endian u32 ids, None when they are not known.

    `namespace` keeps prompts apart whose equal tokens do not share KV (model, adapter, salt): any text, as long as
    equal namespaces give equal texts.
    """

    tokens: bytes | None
    namespace: str
    session_id: str | None
    prompt_tokens: int | None


class Decision(NamedTuple):
    """The chosen worker and why.

    `scores` has every eligible worker: the share of the prompt it can reuse (0..1), less one when the load guard
    holds it back (-1..0). `reusable` and `weight` are those of the chosen worker.
    """

    worker: Worker
    reason: Reason
    scores: dict[Worker, float]
    reusable: int = 0
    weight: float = 1.0
