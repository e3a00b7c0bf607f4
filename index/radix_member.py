"""An SGLang worker's place in a pool, and what is known of its event format and adapters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from index.delta import Delta
from index.event import BlockStored, EngineHash
from index.page_hash import lora_id
from index.pool import WorkerSpec
from index.radix_label import Filing, read_label
from index.radix_namespace import RadixNamespaces
from index.radix_native import AnyRadixIndex
from index.worker import Worker

BIGRAM_BYTES = 8
MAX_PATHS = 8  # of one adapter's name, the present one and those before it, whose blocks may still come
MAX_ADAPTERS = 1_024  # names of one worker whose former paths are remembered


@dataclass(slots=True)
class Pool:
    """A radix index with its namespaces and the workers by slot."""

    model: str
    index: AnyRadixIndex
    namespaces: RadixNamespaces
    names: dict[int, Worker] = field(default_factory=dict)
    free: list[int] = field(default_factory=list)

    @property
    def eagle(self) -> bool:
        return self.index.unit_bytes == BIGRAM_BYTES

    def has_root(self, event: BlockStored) -> bool:
        """Whether this is a root with tokens, in this pool's pages and units."""
        fits = event.block_size == self.index.page_size and event.bigrams == self.eagle
        return fits and event.parent is None and bool(event.tokens)


@dataclass(slots=True)
class Member:
    """A worker's place, and what discovery said of its event format and adapters."""

    spec: WorkerSpec
    pool: Pool | None = None
    slot: int = 0
    dynamo: bool = False
    adapters: dict[str, str] | None = None
    lora_ids: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def file(self, pool: Pool, root: BlockStored, delta: Delta) -> Filing:
        """Where a root of this worker goes; what can only be guessed is not the whole truth."""
        filing = pool.namespaces.of_root(self.slot, root, self.lora_ids.get(root.lora_name or "", ()))
        delta.lossy = delta.lossy or pool.namespaces.is_guessed(self.slot)
        return filing

    def relearn(self, pool: Pool, label: str, hashes: Sequence[EngineHash], tokens: bytes) -> str:
        """The namespace of a stored root of this worker."""
        told = read_label(label)
        ids = self.lora_ids.get(told.lora or "", ()) if told is not None else ()
        return pool.namespaces.relearn(self.slot, label, hashes, tokens, ids)

    def enter(self, pool: Pool) -> None:
        """Tell its pool what is known of it."""
        if self.dynamo:
            pool.namespaces.expect_dynamo(self.slot)
        pool.namespaces.loads.declare(self.slot, self.spec.extra_keys)

    def serve(self, adapters: Mapping[str, str]) -> None:
        """Take over the adapters' paths. What was not listed so before was loaded through the API meanwhile."""
        known, self.adapters = self.adapters, dict(adapters)
        moved: set[str] = set()
        for name, path in adapters.items():
            former = self.lora_ids.pop(name, ())
            ids = dict.fromkeys((lora_id(name, path), *former))
            self.lora_ids[name] = tuple(ids)[:MAX_PATHS]
            if former and former[0] != self.lora_ids[name][0]:
                moved.add(name)
        while len(self.lora_ids) > max(MAX_ADAPTERS, len(adapters)):
            del self.lora_ids[next(iter(self.lora_ids))]
        if self.pool is None:
            return
        if known is None:  # what this process was started with, unless it sent roots under the id of another path
            known = {name: path for name, path in adapters.items() if name not in moved or not self._proved(name)}
        for name in known.keys() | adapters.keys():
            if known.get(name) != adapters.get(name):
                self.pool.namespaces.load_again(self.slot, name)
            if name not in adapters:
                self.pool.namespaces.loads.unlist(self.slot, name)

    def _proved(self, name: str) -> bool:
        """Whether the worker sent a root under the id that follows from the path known of an adapter."""
        return self.pool is not None and bool(self.pool.namespaces.loads.fixed(name) >> self.slot & 1)
