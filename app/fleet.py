"""All instances, and what the names mean that requests ask for. State only, no I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from app.addresses import address_key
from app.instance import NO_IDENTITY, UNVERIFIED, Instance, TrackedWorker
from app.instance_settings import InstanceSettings
from index.worker import EngineKind, Worker
from router.changes import Changes


@dataclass(frozen=True, slots=True)
class Target:
    """What a request's model name means: a base model, perhaps one of its adapters, and the instances that serve it.

    A change of the fleet makes new ones.
    """

    model: str
    lora: str | None
    instances: tuple[Instance, ...]
    workers: frozenset[Worker]


class Fleet:
    """All instances, by id. Names are looked up per request, so they are resolved once per change of the fleet.

    `changes` names workers and instances (by id) whose state decides otherwise now.
    """

    def __init__(self) -> None:
        self._instances: dict[str, Instance] = {}
        self._targets: dict[str, Target] = {}
        self._by_url: dict[str | None, dict[str, Instance]] = {}
        self._by_endpoint: dict[str, dict[Worker, TrackedWorker]] = {}
        self.changes = Changes[Worker | str]()

    def __iter__(self) -> Iterator[Instance]:
        return iter(self._instances.values())

    def __len__(self) -> int:
        return len(self._instances)

    def get(self, instance_id: str) -> Instance | None:
        """An instance by its id."""
        return self._instances.get(instance_id)

    def add(self, settings: InstanceSettings, source: Literal["file", "http"] = "file") -> Instance:
        """Take in an instance with its first worker. The id must be new."""
        assert settings.id not in self._instances
        instance = Instance(settings, source, changes=self.changes)
        self._instances[settings.id] = instance
        self._by_url.setdefault(address_key(settings.url), {})[settings.id] = instance
        self._compare_urls(instance)
        for rank in range(settings.rank_count or 1):
            self.add_worker(instance, rank)
        self.changed()
        return instance

    def add_worker(self, instance: Instance, rank: int) -> TrackedWorker:
        """Track one more rank of an instance."""
        unverified = UNVERIFIED if instance.settings.engine is EngineKind.VLLM else NO_IDENTITY
        tracked = TrackedWorker(Worker(instance.id, rank), unverified, changes=self.changes)
        instance.workers[rank] = tracked
        self.changed()
        return tracked

    def remove_worker(self, instance: Instance, rank: int) -> None:
        """Forget a rank that the engine no longer has."""
        self.note_stream(instance.workers[rank], None)
        del instance.workers[rank]
        self.changed()

    def remove(self, instance_id: str) -> Instance | None:
        """Forget an instance."""
        instance = self._instances.pop(instance_id, None)
        if instance is not None:
            del self._by_url[address_key(instance.settings.url)][instance_id]
            self._compare_urls(instance)
            for tracked in instance.workers.values():
                self.note_stream(tracked, None)
        self.changed()
        return instance

    def changed(self) -> None:
        """Names may mean something else now: call after any change of instances or of what they serve."""
        self._targets.clear()

    def models(self) -> list[str]:
        """Every name a request can ask for: base models, their other names, adapters."""
        names: set[str] = set()
        for instance in self:
            names.add(instance.settings.model)
            names.update(instance.facts.models)
            names.update(instance.adapters)
        return sorted(names)

    def target(self, name: str) -> Target | None:
        """What a model name means; None when nobody serves it. A base model's name wins over an adapter's."""
        target = self._targets.get(name)
        if target is None:
            target = self._find(name)
            if target is not None:
                self._targets[name] = target
        return target

    def note_stream(self, tracked: TrackedWorker, stream: tuple[str, str] | None) -> None:
        """A worker's events come from this endpoint and topic now: who shares it is noted at all of them."""
        former = self.sharing(tracked)
        if tracked.stream is not None:
            there = self._by_endpoint[tracked.stream[0]]
            del there[tracked.worker]
            if not there:
                del self._by_endpoint[tracked.stream[0]]
        tracked.stream = stream
        if stream is not None:
            self._by_endpoint.setdefault(stream[0], {})[tracked.worker] = tracked
        for one in {other.worker: other for other in (*former, *self.sharing(tracked), tracked)}.values():
            one.sharing = tuple(sorted({other.worker.instance for other in self.sharing(one)}))

    def _compare_urls(self, changed: Instance) -> None:
        """Note at every instance of one URL which others there are."""
        key = address_key(changed.settings.url)
        there = self._by_url[key]
        for instance in there.values():
            instance.same_url = tuple(id for id in there if id != instance.id)
        if not there:
            del self._by_url[key]

    def sharing(self, tracked: TrackedWorker) -> list[TrackedWorker]:
        """Other workers whose events cannot be told from this one's: the same endpoint, and not two topics."""
        if tracked.stream is None:
            return []
        endpoint, topic = tracked.stream
        return [
            other
            for other in self._by_endpoint.get(endpoint, {}).values()
            if other is not tracked and other.stream
            if topic == other.stream[1] or not topic or not other.stream[1]
        ]

    def of_model(self, model: str) -> tuple[Instance, ...]:
        """The instances configured for a base model."""
        return tuple(instance for instance in self if instance.settings.model == model)

    def _find(self, name: str) -> Target | None:
        named = next((one for one in self if one.settings.model == name), None)
        aliased = named or next((one for one in self if one.serves(name)), None)
        if aliased is not None:
            model = aliased.settings.model
            return self._target(model, None)
        adapted = next((one for one in self if name in one.adapters), None)
        if adapted is not None:
            model = adapted.settings.model
            return self._target(model, name)
        return None

    def _target(self, model: str, lora: str | None) -> Target:
        instances = self.of_model(model)
        workers = (tracked.worker for instance in instances for tracked in instance.workers.values())
        return Target(model, lora, instances, frozenset(workers))
