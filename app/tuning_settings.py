"""The numbers behind decisions and event streams as settings; meanings stand at RouterSettings and ListenerLimits."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from app.instance_settings import CLOSED
from engine.stream import ListenerLimits
from router.settings import RouterSettings

Seconds = Annotated[float, Field(gt=0, le=86_400, description="seconds, above 0 and up to 86400")]
SecondsOrNone = Annotated[float, Field(ge=0, le=86_400, description="seconds, 0..86400; 0 switches it off")]
Count = Annotated[int, Field(ge=1, le=1 << 24, description="1..16777216")]

_ROUTER = RouterSettings()
_STREAM = ListenerLimits()


class RouterSection(BaseModel):
    """When load beats a prefix, and how long the router remembers what it decided."""

    model_config = CLOSED

    guard_floor_requests: Annotated[float, Field(ge=0, le=1e9, description="requests per weight, 0..1e9")] = (
        _ROUTER.guard_floor_requests
    )
    guard_multiple: Annotated[float, Field(ge=1, le=1e6, description="1..1e6")] = _ROUTER.guard_multiple
    backlog_weight: Annotated[float, Field(ge=0, le=1, description="reusable tokens per waiting token, 0..1")] = (
        _ROUTER.backlog_weight
    )
    warm_request_cost: Annotated[float, Field(ge=0, le=1, description="share of a request, 0..1")] = (
        _ROUTER.warm_request_cost
    )
    load_window_s: Seconds = _ROUTER.load_window_s
    load_stale_s: Seconds = _ROUTER.load_stale_s
    spread_half_life_s: Seconds = _ROUTER.spread_half_life_s
    assignment_ttl_s: Seconds = _ROUTER.assignment_ttl_s
    prefill_ttl_s: Seconds = _ROUTER.prefill_ttl_s
    request_ttl_s: Seconds = _ROUTER.request_ttl_s
    request_limit: Count = _ROUTER.request_limit
    session_ttl_s: Seconds = _ROUTER.session_ttl_s
    session_limit: Count = _ROUTER.session_limit
    predict_ttl_s: SecondsOrNone = _ROUTER.predict_ttl_s
    predict_limit: Count = _ROUTER.predict_limit
    predict_boundaries: Annotated[int, Field(ge=1, le=1024, description="1..1024")] = _ROUTER.predict_boundaries

    def router(self) -> RouterSettings:
        """The same numbers as the router takes them."""
        return RouterSettings(**self.model_dump())


class ListenerSection(BaseModel):
    """Waits, retries and buffers of every event stream."""

    model_config = CLOSED

    first_answer_s: Seconds = _STREAM.first_answer_s
    next_answer_s: Seconds = _STREAM.next_answer_s
    fruitless_asks: Annotated[int, Field(ge=1, le=100, description="1..100")] = _STREAM.fruitless_asks
    backoff_s: Seconds = _STREAM.backoff_s
    settle_s: Seconds = _STREAM.settle_s
    idle_s: Seconds = _STREAM.idle_s
    idle_max_s: Seconds = _STREAM.idle_max_s
    fingerprint_s: Seconds = _STREAM.fingerprint_s
    inquiry_s: Seconds = _STREAM.inquiry_s
    resync_s: Seconds = _STREAM.resync_s
    clock_step_s: Seconds = _STREAM.clock_step_s
    held_batches: Count = _STREAM.held_batches
    held_bytes: Annotated[int, Field(ge=1 << 16, le=1 << 36, description="65536..68719476736 bytes")] = (
        _STREAM.held_bytes
    )
    remembered_batches: Count = _STREAM.remembered_batches
    drain_batches: Count = _STREAM.drain_batches

    def listener(self) -> ListenerLimits:
        """The same numbers as a listener takes them."""
        return ListenerLimits(**self.model_dump())
