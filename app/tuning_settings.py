"""The numbers behind decisions and event streams as settings; RouterSettings and ListenerLimits say more of them."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from app.instance_settings import CLOSED
from app.meaning import Meaning, Unit
from engine.stream import ListenerLimits
from router.settings import RouterSettings

Seconds = Annotated[float, Unit("seconds"), Field(gt=0, le=86_400, description="seconds, above 0 and up to 86400")]
SecondsOrNone = Annotated[
    float, Unit("seconds"), Field(ge=0, le=86_400, description="seconds, 0..86400; 0 switches it off")
]
Count = Annotated[int, Field(ge=1, le=1 << 24, description="1..16777216")]
Bytes = Annotated[int, Unit("bytes"), Field(ge=1 << 16, le=1 << 36, description="65536..68719476736 bytes")]

_ROUTER = RouterSettings()
_STREAM = ListenerLimits()


class RouterSection(BaseModel):
    """When load beats a prefix, and how long the router remembers what it decided."""

    model_config = CLOSED

    guard_floor_requests: Annotated[
        float,
        Unit("requests per weight"),
        Meaning("a holder of a prefix can lose to load above so many requests per weight"),
        Field(ge=0, le=1e9, description="requests per weight, 0..1e9"),
    ] = _ROUTER.guard_floor_requests
    guard_multiple: Annotated[
        float,
        Meaning("and if that is also above so many times the least loaded worker's, plus one"),
        Field(ge=1, le=1e6, description="1..1e6"),
    ] = _ROUTER.guard_multiple
    backlog_weight: Annotated[
        float,
        Unit("reusable tokens per waiting token"),
        Meaning("a prompt token that waits at the holder counts so much of a reusable one; 0: queues do not count"),
        Field(ge=0, le=1, description="reusable tokens per waiting token, 0..1"),
    ] = _ROUTER.backlog_weight
    warm_request_cost: Annotated[
        float,
        Unit("requests"),
        Meaning("a request counts as load by the share of its prompt to be computed, at least this"),
        Field(ge=0, le=1, description="share of a request, 0..1"),
    ] = _ROUTER.warm_request_cost
    load_window_s: Annotated[
        Seconds, Meaning("assumed age of an engine's load report that does not say when it was read")
    ] = _ROUTER.load_window_s
    load_stale_s: Annotated[Seconds, Meaning("an older report of an engine's load is taken as not known")] = (
        _ROUTER.load_stale_s
    )
    spread_half_life_s: Annotated[
        Seconds, Meaning("how slowly earlier assignments fade from the count that spreads ties")
    ] = _ROUTER.spread_half_life_s
    assignment_ttl_s: Annotated[
        Seconds, Meaning("an assignment that nobody reports as finished stops counting as load")
    ] = _ROUTER.assignment_ttl_s
    prefill_ttl_s: Annotated[
        Seconds, Meaning("a request without a report of its first token stops counting as waiting for prefill")
    ] = _ROUTER.prefill_ttl_s
    request_ttl_s: Annotated[Seconds, Meaning("how long a request id can be reported on")] = _ROUTER.request_ttl_s
    request_limit: Annotated[Count, Unit("requests"), Meaning("request ids kept; the oldest give way")] = (
        _ROUTER.request_limit
    )
    session_ttl_s: Annotated[Seconds, Meaning("a session without a request for so long is forgotten")] = (
        _ROUTER.session_ttl_s
    )
    session_limit: Annotated[Count, Unit("sessions"), Meaning("sessions kept; the longest unused give way")] = (
        _ROUTER.session_limit
    )
    predict_ttl_s: Annotated[
        SecondsOrNone,
        Meaning("how long a guess of what an engine will hold lives unless events confirm it; 0: no guesses"),
    ] = _ROUTER.predict_ttl_s
    predict_limit: Annotated[Count, Unit("guesses"), Meaning("guesses kept; the oldest give way")] = (
        _ROUTER.predict_limit
    )
    predict_boundaries: Annotated[
        int,
        Unit("lengths"),
        Meaning("prefix lengths of one prompt that are guessed for"),
        Field(ge=1, le=1024, description="1..1024"),
    ] = _ROUTER.predict_boundaries

    def router(self) -> RouterSettings:
        """The same numbers as the router takes them."""
        return RouterSettings(**self.model_dump())


class ListenerSection(BaseModel):
    """Waits, retries and buffers of every event stream."""

    model_config = CLOSED

    first_answer_s: Annotated[Seconds, Meaning("until the first batch of a replay answer")] = _STREAM.first_answer_s
    next_answer_s: Annotated[
        Seconds, Meaning("between two batches of a replay answer, and before a missing end marker")
    ] = _STREAM.next_answer_s
    fruitless_asks: Annotated[
        int,
        Unit("replay requests"),
        Meaning("replay requests in a row that close nothing of a hole before it counts as gone for good"),
        Field(ge=1, le=100, description="1..100"),
    ] = _STREAM.fruitless_asks
    backoff_s: Annotated[
        Seconds, Meaning("before the next replay request after a fruitless one; doubles, with jitter")
    ] = _STREAM.backoff_s
    settle_s: Annotated[Seconds, Meaning("after a connection, until what was published before it is asked for")] = (
        _STREAM.settle_s
    )
    idle_s: Annotated[
        Seconds, Meaning("without a batch, until a lost tail is asked for; doubles while nothing comes")
    ] = _STREAM.idle_s
    idle_max_s: Annotated[Seconds, Meaning("the longest such time")] = _STREAM.idle_max_s
    fingerprint_s: Annotated[
        Seconds, Meaning("until an engine that does not say which process it is counts as unknown")
    ] = _STREAM.fingerprint_s
    inquiry_s: Annotated[Seconds, Meaning("between two such questions that gaps give rise to")] = _STREAM.inquiry_s
    resync_s: Annotated[Seconds, Meaning("between two replays from the first batch on")] = _STREAM.resync_s
    clock_step_s: Annotated[
        Seconds, Meaning("a batch whose engine time lies further back than this comes from a new process")
    ] = _STREAM.clock_step_s
    held_batches: Annotated[
        Count, Unit("batches"), Meaning("live batches held back while a hole is being filled, at most")
    ] = _STREAM.held_batches
    held_bytes: Annotated[Bytes, Meaning("the bytes of live batches held back, at most")] = _STREAM.held_bytes
    remembered_batches: Annotated[
        Count,
        Unit("batches"),
        Meaning("applied batches of which a digest is kept (8 bytes each), to tell a repeat from a new process"),
    ] = _STREAM.remembered_batches
    drain_batches: Annotated[Count, Unit("messages"), Meaning("messages taken from one socket at a time, at most")] = (
        _STREAM.drain_batches
    )

    def listener(self) -> ListenerLimits:
        """The same numbers as a listener takes them."""
        return ListenerLimits(**self.model_dump())
