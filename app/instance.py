"""One engine instance as the process knows it: its settings, its workers, and what each shows. State only, no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Literal, NamedTuple

from app.contact import Contact
from app.ejection import NEVER, Ejection
from app.engine_key import EngineKey
from app.instance_settings import InstanceSettings
from engine.address import EngineAddress
from engine.facts import EngineFacts
from engine.identity import HashReport
from engine.load import EngineLoad
from index.worker import EngineKind, Trust, Worker
from router.changes import Changes

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
        "catching_up",
        "behind",
        "batches",
        "usable_batches",
        "mixes_namespaces",
    }
)
_INSTANCE_DECIDES = frozenset({"settings", "facts", "draining", "unusable", "contact", "ejection"})
"""What a decision is made from; whoever sets one of these to another value has it noted, and need not think of it."""


class AdapterDoubt(NamedTuple):
    """When an event showed it, and the path that was listed then."""

    at: float
    path: str


@dataclass(slots=True)
class TrackedWorker:
    """One worker's stream as it was followed so far. Times are seconds of the loop's monotonic clock."""

    worker: Worker
    hash: HashReport
    trust: Trust = Trust.NONE
    link_up: bool = False
    link_lost_at: float | None = None
    refused: bool = False
    refused_since: float = 0.0
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
    asleep_since: float = 0.0
    doubtful: bool = False
    """What is held comes from the state store, and the engine may be another process since."""
    catching_up: bool = False
    """Its stream broke off, or began: what is held counts when the process has proven the same, and all has come."""
    behind: bool = False
    """Something that was published did not come, or perhaps: what is held is not all."""
    stream: tuple[str, str] | None = None
    """Event endpoint and topic that are followed."""
    stream_since: float | None = None
    """When that stream was first followed."""
    stream_advice: str | None = None
    mixes_namespaces: bool = False
    """It was sent requests with an adapter or an extra_key, and its events tell nothing of either."""
    mixed_at: float = 0.0
    """When the last of those was sent."""
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
                if value is True and name in ("asleep", "refused"):
                    object.__setattr__(self, f"{name}_since", monotonic())
        object.__setattr__(self, name, value)

    @property
    def names(self) -> dict[str, object]:
        """What a log line about it names."""
        return {"instance": self.worker.instance, "dp_rank": self.worker.dp_rank, "seq": self.seq}

    @property
    def broken(self) -> bool:
        """Whether messages arrive and not one of them could be used."""
        return self.batches > 0 and self.usable_batches == 0

    @property
    def uncertain(self) -> bool:
        """Whether what is held counts for nothing at present: its engine's process or its later events are unknown."""
        return self.doubtful or self.catching_up


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
    draining_since: float = 0.0
    unusable: str | None = None
    contact: Contact = Contact()
    """Over HTTP and by its links."""
    heard_at: float = 0.0
    """When it last answered anything over HTTP."""
    welcome: bool = False
    """It has answered all our questions, with our key or without."""
    slow_until: float = 0.0
    """It took long over a text: others are asked first until then."""
    ejection: Ejection = NEVER
    """By what gateways report."""
    tried: bool = False
    listed_at: float | None = None
    """When what it serves was read last; the time at which the question was sent."""
    adapters_moved: bool = False
    """Its present process was seen to load or unload adapters."""
    doubts: dict[str, AdapterDoubt] = field(default_factory=dict)
    """Adapters of which an event says another path than the list that was read last."""
    same_url: tuple[str, ...] = ()
    """Other instances at the same URL, as the fleet keeps it."""
    key: EngineKey = field(init=False, repr=False, compare=False)
    changes: Changes[Worker | str] = field(default_factory=Changes, repr=False, compare=False)
    """The fleet's, where this instance is noted by its id."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in _INSTANCE_DECIDES and hasattr(self, "changes") and getattr(self, name) != value:
            self.changes.note(self.id)
            if name == "draining":
                object.__setattr__(self, "draining_since", monotonic())
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
        return frozenset((self.settings.model, *self.facts.models, *self.facts.roots.values()))

    @property
    def id(self) -> str:
        """The instance's unique name."""
        return self.settings.id

    @property
    def adapters(self) -> Mapping[str, str]:
        """LoRA adapter name -> path, as the engine lists them."""
        return self.facts.adapters

    def applies(self, tracked: TrackedWorker) -> bool:
        """Whether the worker's events are put into the index: it is not refused, and its release can be used."""
        return not tracked.refused and self.unusable is None

    @property
    def reachable(self) -> bool | None:
        """Whether it answers over HTTP; None: it was not asked yet."""
        untried = not self.contact.served and self.contact.why is None
        return None if untried else self.contact.reachable

    @property
    def sends_unmarked(self) -> bool:
        """Whether its events do not tell whose blocks are an adapter's or an extra_key's, as far as is known."""
        return self.settings.engine is EngineKind.SGLANG and self.facts.dynamo_format is not True

    @property
    def all_current(self) -> bool:
        """Whether all that its ranks published until they were connected was applied, as far as anybody answers."""
        return all(one.link_up and not one.catching_up and not one.behind for one in self.workers.values())

    def has_events(self, tracked: TrackedWorker) -> bool:
        """Whether the worker has an event stream, as far as is known."""
        return tracked.link_lost_at is not None or self.settings.events is not None or bool(self.facts.events)
