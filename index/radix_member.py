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

    def serve(self, adapters: Mapping[str, str]) -> bool:
        """Take over the adapters' paths. What was not listed so before was loaded through the API meanwhile.

        Whether something that may be held counts no more.
        """
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
            return False
        namespaces = self.pool.namespaces
        gone, fresh = self._gone(known, moved), adapters.keys() - (adapters if known is None else known).keys()
        news = [namespaces.load_again(self.slot, name) for name in gone]
        # What came under the name of one that was not served before is of the load that is found now.
        news += [namespaces.loads.load_again(self.slot, name) for name in fresh]
        return any(news)

    def _gone(self, known: Mapping[str, str] | None, moved: set[str]) -> set[str]:
        """The adapters whose weights are not there any more; `moved`: those listed under another path than before."""
        assert self.pool is not None
        assert self.adapters is not None
        if known is not None:
            return {name for name, path in known.items() if self.adapters.get(name) != path}
        # The first list of a process says what it was started with; of that it may have sent roots before.
        return self.pool.namespaces.loads.fixed_names(self.slot) - (self.adapters.keys() - moved)
