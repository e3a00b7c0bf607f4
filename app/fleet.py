"""All instances, and what the names mean that requests ask for. State only, no I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from app.addresses import address_key
from app.instance import NO_IDENTITY, UNVERIFIED, Instance, TrackedWorker
from app.instance_settings import InstanceSettings
from app.known_models import KnownModels
from app.serving_names import Asked, lists_adapter, lora_on, serves_other, split_name
from index.worker import EngineKind, Worker
from router.changes import Changes


@dataclass(frozen=True, slots=True)
class Target:
    """What a request's model name means: a base model, perhaps one of its adapters, and its instances.

    Which of them serve it under that name is for each to be said by itself (`app.serving_names`). `models` are several
    where engines of different ones list it as an alias or an adapter. A change of the fleet makes new ones.
    """

    model: str
    lora: str | None
    instances: tuple[Instance, ...]
    workers: frozenset[Worker]
    asked: Asked
    models: tuple[str, ...]

    def lora_on(self, instance: Instance, lora: str | None) -> str | None:
        """The adapter meant to an instance by a request that names `lora` besides its model."""
        return lora_on(instance, self.asked, lora)


class Fleet:
    """All instances, by id. Names are looked up per request, so they are resolved once per change of the fleet.

    `changes` names workers and instances (by id) whose state decides otherwise now.
    """

    def __init__(self, expected: Collection[str] = ()) -> None:
        """`expected`: models that the settings name, whether there are instances or not."""
        self._instances: dict[str, Instance] = {}
        self._targets: dict[tuple[str, str | None], Target] = {}
        self._known = KnownModels(expected)
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
            if _right(instance):
                self._known.listed(instance.settings.model, (*instance.facts.models, *instance.adapters))
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
            if _right(instance):
                names.update(instance.facts.models)
                names.update(instance.adapters)
        return sorted(names)

    def target(self, name: str, lora_path: str | None = None) -> Target | None:
        """What a model name means; None when nobody serves it. A base model's name wins over an adapter's.

        An adapter that the name tells wins over `lora_path`, as in SGLang.
        """
        target = self._targets.get((name, lora_path))
        if target is None:
            target = self._find(name)
            if target is not None:
                if lora_path is not None and target.lora is None:
                    asked = target.asked._replace(lora=lora_path, form="lora_path")
                    target = replace(target, lora=lora_path, asked=asked)
                if lora_path is None or any(lora_path in one.adapters for one in target.instances):
                    self._targets[name, lora_path] = target  # of names that engines tell there is an end
        return target

    def waits_for(self, name: str) -> str | None:
        """The model that a name nobody serves is known to mean, if that has no instance now."""
        model = self._known.model_of(name)
        return None if model is None or self.of_model(model) else model

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
        models = self._based(name)
        if models:
            return self._target(models, Asked(name, name, None))
        parts = split_name(name)
        if parts is None:
            listing = [one for one in self if _right(one) and name in one.adapters]
            return self._target(_models(listing), Asked(name, None, name)) if listing else None
        return self._find_both(name, *parts)

    def _based(self, name: str) -> tuple[str, ...]:
        """The configured models that a base model's name means: that one, or those of whom engines list it."""
        if any(one.settings.model == name for one in self):
            return (name,)
        return _models(one for one in self if _right(one) and name in one.facts.models and name not in one.adapters)

    def _find_both(self, name: str, base: str, adapter: str | None) -> Target | None:
        """`base:adapter` where an SGLang instance may have it, or a name that vLLM lists so as an adapter's."""
        vllm = [one for one in self if _is(one, EngineKind.VLLM) and _right(one) and name in one.adapters]
        models = self._based(base)
        served = [one for one in self if one.settings.model in models and _is(one, EngineKind.SGLANG) and _right(one)]
        if adapter is not None and not any(lists_adapter(one, adapter) or not one.facts.models for one in served):
            served = []
        if not served and not vllm:
            return None
        return self._target(_models([*served, *vllm]), Asked(name, base, adapter if served else name, "colon"))

    def _target(self, models: tuple[str, ...], asked: Asked) -> Target:
        instances = tuple(one for one in self if one.settings.model in models)
        workers = (tracked.worker for instance in instances for tracked in instance.workers.values())
        return Target(models[0], asked.lora, instances, frozenset(workers), asked, models)


def _models(instances: Iterable[Instance]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.settings.model for one in instances))


def _is(instance: Instance, kind: EngineKind) -> bool:
    return instance.settings.engine is kind


def _right(instance: Instance) -> bool:
    """Whether its engine serves the model that it was configured for, as far as it tells."""
    return serves_other(instance.settings.model, instance.facts) is None
