"""The numbers behind a decision, each with its unit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """Defaults suit engines that run some dozens of requests at a time. All times are in seconds.

    Load guard: a worker with a longer prefix loses when its load per weight (requests) is above `guard_floor_requests`
    and above `guard_multiple` times the least load per weight plus one. An infinite floor switches the guard off.
    """

    guard_floor_requests: float = 16.0
    guard_multiple: float = 2.0
    backlog_weight: float = 0.05
    """A prompt token that a worker must compute first counts so much of a reusable one (see `router.backlog`)."""

    warm_request_cost: float = 0.25
    """A request assigned since the last report counts as the share of its prompt to be computed, at least this."""
    load_window_s: float = 2.0
    """Assumed age of an engine report that does not say when it was read."""
    load_stale_s: float = 10.0
    """An older engine report is taken as not known."""

    spread_half_life_s: float = 120.0
    """How slowly earlier assignments fade from the count that spreads ties."""
    assignment_ttl_s: float = 60.0
    """An assignment nobody reports as finished stops counting as load."""
    prefill_ttl_s: float = 30.0
    """A request without a report of its first token stops counting as waiting for prefill."""
    request_ttl_s: float = 600.0
    """How long a request id can be reported on."""
    request_limit: int = 131_072
    """Request ids kept; the oldest give way."""

    session_ttl_s: float = 600.0
    """A session without a request for so long is forgotten."""
    session_limit: int = 65_536
    """Sessions kept; the longest unused give way."""

    predict_ttl_s: float = 2.0
    """How long a guess lives unless events confirm it (they then match for real). Zero: no guesses."""
    predict_limit: int = 65_536
    """Guesses kept; the oldest give way."""
    predict_boundaries: int = 64
    """Prefix lengths of one prompt that are guessed for (64 reach 10,240 tokens)."""

    def __post_init__(self) -> None:
        if not self.guard_multiple >= 1 or not self.guard_floor_requests >= 0:
            raise ValueError("guard_multiple must be at least 1 and guard_floor_requests at least 0")
        if not self.backlog_weight >= 0:
            raise ValueError("backlog_weight must be at least 0")
        if not self.spread_half_life_s > 0:
            raise ValueError("spread_half_life_s must be above 0")
