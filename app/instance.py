"""One engine instance as the process knows it: its settings, its workers, and what each shows. State only, no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from app.engine_key import EngineKey
from app.instance_settings import InstanceSettings
from engine.address import EngineAddress
from engine.facts import EngineFacts
from engine.identity import HashReport
from engine.load import EngineLoad
from index.worker import Trust, Worker
from router.changes import Changes

GONE_AFTER_S = 3.0
"""How long both the event stream and HTTP must be lost before a worker that was live counts as gone."""

DEAF_AFTER_S = 10.0
"""How long a lost event stream leaves what is held as it is; an engine that goes on evicts, and nobody hears it."""

NO_FACTS = EngineFacts(None, {}, {}, None, None, None, None, None, {}, (), None, None)
UNVERIFIED = HashReport("unverified", None, None, None)
NO_IDENTITY = HashReport("none", None, None, None)


_WORKER_DECIDES = frozenset(
    {
        "trust",
        "link_up",
        "link_lost_at",
        "refused",
        "load",
        "load_at",
        "asleep",
        "doubtful",
        "batches",
        "usable_batches",
    }
)
_INSTANCE_DECIDES = frozenset({"settings", "facts", "draining", "unusable", "reachable", "unreachable_since"})
"""What a decision is made from; whoever sets one of these to another value has it noted, and need not think of it."""


class WorkerState(StrEnum):
    """What `GET /instances` shows: only a worker that is gone never wins."""

    CONNECTING = "connecting"
    LIVE = "live"
    REFUSED = "refused"
    GONE = "gone"


@dataclass(slots=True)
class TrackedWorker:
    """One worker's stream as it was followed so far. Times are seconds of the loop's monotonic clock."""

    worker: Worker
    hash: HashReport
    trust: Trust = Trust.NONE
    link_up: bool = False
    link_lost_at: float | None = None
    refused: bool = False
    advice: str | None = None
    seq: int | None = None
    lag_s: float | None = None
    gaps: int = 0
    replayed_batches: int = 0
    batches: int = 0
    """Messages of the present process, also unusable ones."""
    usable_batches: int = 0
    resets: Counter[str] = field(default_factory=Counter)
    wire_errors: Counter[str] = field(default_factory=Counter)
    load: EngineLoad | None = None
    load_at: float | None = None
    asleep: bool = False
    doubtful: bool = False
    """What is held comes from the state store, and the engine may be another process since."""
    stream: tuple[str, str] | None = None
    """Event endpoint and topic that are followed."""
    stream_since: float | None = None
    """When that stream was first followed."""
    stream_advice: str | None = None
    sharing: tuple[str, ...] = ()
    """Instances whose events come from the same endpoint and cannot be told from this worker's (Fleet.note_stream)."""
    enforced: bool = True
    """Whether a deviating hash identity has it refused; under `translate` it is only shown."""
    changes: Changes[Worker | str] = field(default_factory=Changes, repr=False, compare=False)
    """The fleet's, where this worker is noted."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in _WORKER_DECIDES and hasattr(self, "changes"):
            before = getattr(self, name)
            counts = name.endswith("batches")  # of which only none or some decides
            if bool(before) is not bool(value) if counts else before != value:
                self.changes.note(self.worker)
        object.__setattr__(self, name, value)

    @property
    def names(self) -> dict[str, object]:
        """What a log line about it names."""
        return {"instance": self.worker.instance, "dp_rank": self.worker.dp_rank, "seq": self.seq}

    @property
    def broken(self) -> bool:
        """Whether messages arrive and not one of them could be used."""
        return self.batches > 0 and self.usable_batches == 0

    def uncertain(self, now: float) -> bool:
        """Whether what is held counts for nothing at present: its engine's process or its later events are unknown."""
        return self.doubtful or (self.link_lost_at is not None and now - self.link_lost_at > DEAF_AFTER_S)


@dataclass(slots=True)
class Instance:
    """One engine instance: its settings, what it told over HTTP, its workers.

    `unusable` says why the events of its release cannot be used; None when they can.
    """

    settings: InstanceSettings
    source: Literal["file", "http"] = "file"
    facts: EngineFacts = NO_FACTS
    workers: dict[int, TrackedWorker] = field(default_factory=dict)
    draining: bool = False
    unusable: str | None = None
    reachable: bool | None = None
    unreachable_since: float | None = None
    tried: bool = False
    same_url: tuple[str, ...] = ()
    """Other instances at the same URL, as the fleet keeps it."""
    key: EngineKey = field(init=False, repr=False, compare=False)
    changes: Changes[Worker | str] = field(default_factory=Changes, repr=False, compare=False)
    """The fleet's, where this instance is noted by its id."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in _INSTANCE_DECIDES and hasattr(self, "changes") and getattr(self, name) != value:
            self.changes.note(self.id)
        object.__setattr__(self, name, value)

    def __post_init__(self) -> None:
        own = self.settings
        self.key = EngineKey(None if own.api_key is None else own.api_key.get_secret_value(), own.api_key_file)

    @property
    def address(self) -> EngineAddress:
        """Where and with which key the engine is asked now. Reads the key's file where it has changed."""
        return EngineAddress(self.settings.engine, self.settings.url, self.key.current())

    @property
    def own_names(self) -> frozenset[str]:
        """What the engine's metrics may call the model that it serves."""
        return frozenset((self.settings.model, *self.facts.models, *self.facts.roots))

    @property
    def id(self) -> str:
        """The instance's unique name."""
        return self.settings.id

    @property
    def adapters(self) -> Mapping[str, str]:
        """LoRA adapter name -> path, as the engine lists them."""
        return self.facts.adapters

    def serves(self, model: str) -> bool:
        """Whether requests for the base model `model` (its name here, or one the engine also serves it under) fit."""
        return model == self.settings.model or (model in self.facts.models and model not in self.facts.adapters)

    def applies(self, tracked: TrackedWorker) -> bool:
        """Whether the worker's events are put into the index: it is not refused, and its release can be used."""
        return not tracked.refused and self.unusable is None

    def state_of(self, tracked: TrackedWorker, now: float) -> WorkerState:
        """The worker's state. An instance without events is live while it answers over HTTP; one that died is gone."""
        if self._is_gone(tracked, now):
            return WorkerState.GONE
        if tracked.refused or self.unusable is not None:
            return WorkerState.REFUSED
        if tracked.link_up or (self.reachable and not self._has_events(tracked)):
            return WorkerState.LIVE
        return WorkerState.CONNECTING

    def _is_gone(self, tracked: TrackedWorker, now: float) -> bool:
        if tracked.link_up or self.reachable:
            return False
        lost_link = tracked.link_lost_at is not None and now - tracked.link_lost_at > GONE_AFTER_S
        lost_http = self.unreachable_since is not None and now - self.unreachable_since > GONE_AFTER_S
        return lost_link or (lost_http and not self._has_events(tracked))

    def _has_events(self, tracked: TrackedWorker) -> bool:
        return tracked.link_lost_at is not None or self.settings.events is not None or bool(self.facts.events)

    def state(self, now: float) -> WorkerState:
        """The instance's state: refused when a rank is, live when one is, gone when all are."""
        states = {self.state_of(tracked, now) for tracked in self.workers.values()}
        for state in (WorkerState.REFUSED, WorkerState.LIVE, WorkerState.CONNECTING):
            if state in states:
                return state
        return WorkerState.GONE if states else WorkerState.CONNECTING
