"""The index of a fleet: workers in, events in, matches out. The narrow interface of docs/adr/0003."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import assert_never

from index.block_hash import HashIdentity
from index.block_pools import BlockPools
from index.delta import AppliedPayload, AppliedRun, Delta
from index.dump import BlockDump, Dump, RadixDump, Recorded, unpacked
from index.event import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, KVEvent, SkippedEvent
from index.native import Core
from index.pool import PoolStats, WorkerSpec
from index.prompt import Prompt, WorkerMatch
from index.radix_pools import RadixPools
from index.worker import EngineKind, Worker


class Index:
    """Who holds which prefix, over all models and both kinds of engines. Synchronous: a call is atomic on the loop."""

    def __init__(self, core: Core | None = None) -> None:
        """In the core that serves unless another is given."""
        self.blocks = BlockPools(core)
        self.radix = RadixPools(core)

    def __contains__(self, worker: Worker) -> bool:
        return worker in self.blocks or worker in self.radix

    def add(self, worker: Worker, spec: WorkerSpec) -> None:
        """Take in a worker. Adding a known one is our own mistake."""
        assert worker not in self.blocks
        assert worker not in self.radix
        self._side(spec.engine).add(worker, spec)

    def remove(self, worker: Worker) -> None:
        """Free a worker and all it alone held, at a cost proportional to what it held."""
        self._of(worker).remove(worker)

    def clear(self, worker: Worker) -> int:
        """Forget a worker's holdings, all tiers and groups; returns their number."""
        return self._of(worker).clear(worker)

    def restart(self, worker: Worker) -> int:
        """A new engine process: forget its holdings and everything learnt from its events."""
        return self._of(worker).restart(worker)

    def respec(self, worker: Worker, spec: WorkerSpec) -> None:
        """Take over what was learnt of a worker after it was added (a match unit)."""
        self._of(worker).respec(worker, spec)

    def hint(
        self, worker: Worker, dynamo: bool | None, adapters: Mapping[str, str] | None, *, anew: bool = False
    ) -> bool:
        """What an SGLang engine says of its event format and of its adapters (name -> path; None: it did not say).

        `anew`: it is another process than the one that spoke before. Whether it loaded an adapter again, so that what
        is held of that counts no more.
        """
        return worker in self.radix and self.radix.hint(worker, dynamo, adapters, anew=anew)

    def misfiled(self, worker: Worker) -> bool:
        """Whether SGLang blocks were filed wrongly, because their format was not known then. Only a clear mends it."""
        return worker in self.radix and self.radix.misfiled(worker)

    def adapter_doubted(self, worker: Worker, lora: str) -> bool:
        """Whether what an SGLang worker holds of an adapter may be of a load before the present one: no event tells."""
        return worker in self.radix and self.radix.adapter_doubted(worker, lora)

    def identify(self, worker: Worker, identity: HashIdentity, shared: bool) -> None:
        """A vLLM worker's root block was re-derived; `shared`: with the fleet's identity."""
        self.blocks.identify(worker, identity, shared)

    def apply(
        self, worker: Worker, batch: EventBatch, record: bool = False, applied: AppliedPayload | None = None
    ) -> Delta:
        """Apply a batch's events in order. Unusable ones cost only themselves and are counted by reason.

        With `record` the delta has the operations that `redo` does again on equal holdings. With `applied`, what
        `apply_payload` said of the same payload, only the events that it left, into its delta.
        """
        side, delta, events = self._of(worker), Delta(operations=[] if record else None), batch.events
        if applied is not None:
            delta, events = applied.delta, events[applied.done :]
        for event in events:
            _apply_one(side, worker, event, delta)
        return delta

    def apply_payload(self, worker: Worker, payload: bytes, record: bool = False) -> AppliedPayload | None:
        """Apply a payload of plain events in the native core. None, and no change: it is not one; decode it.

        It may stop before an event that needs more than that core knows: then decode, and `apply` the rest.
        """
        return self._of(worker).apply_payload(worker, payload, record)

    def apply_payloads(self, worker: Worker, payloads: list[bytes], record: bool = False) -> AppliedRun:
        """Apply the first of several payloads in the native core, as if each had been given to `apply_payload`.

        It ends before one that is not plain, and with one that needs more than that core knows (`begun`): then decode
        that one, and `apply` the rest of it.
        """
        return self._of(worker).apply_payloads(worker, payloads, record)

    def dump(self, worker: Worker) -> Dump | None:
        """What a worker holds, as values; None when it has no pool yet."""
        return self._of(worker).dump(worker)

    def restore(self, worker: Worker, dump: Dump) -> None:
        """Hold again what was dumped. The worker must be as after `restart`, and of the dump's kind."""
        if isinstance(dump, BlockDump) and worker in self.blocks:
            self.blocks.restore(worker, dump)
        elif isinstance(dump, RadixDump) and worker in self.radix:
            self.radix.restore(worker, dump)
        else:
            raise ValueError("the dump is of another kind of engine")

    def redo(self, worker: Worker, operations: Iterable[Recorded]) -> bool:
        """Do recorded operations again. False: one of them does not fit what is held; what follows was not done."""
        side = self._of(worker)
        for recorded in operations:
            operation = unpacked(recorded)
            if operation[0] == "C":
                side.clear(worker)
            elif not side.redo(worker, operation):
                return False
        return True

    def match(
        self, model: str, prompt: Prompt, only: Collection[Worker], lora_path: str | None = None
    ) -> dict[Worker, WorkerMatch]:
        """How much of `prompt` each of `only` holds; workers without blocks are left out (they hold nothing).

        The deepest come first, mostly.
        """
        matches = self.blocks.match(model, prompt, only, lora_path)
        for match in self.radix.match(model, prompt, only, lora_path):
            matches[match.worker] = match
        return matches

    def counts(self, worker: Worker) -> tuple[int, int, int, int]:
        """Held blocks (SGLang: pages) per medium (gpu, cpu, disk, other)."""
        return self._of(worker).counts(worker)

    def block_size(self, worker: Worker) -> int | None:
        """Tokens per block (page) as the events tell it; None before any."""
        return self._of(worker).block_size(worker)

    def parked(self, worker: Worker) -> int:
        """Stores that wait for their parent."""
        return self._of(worker).parked(worker)

    def stats(self) -> Iterator[PoolStats]:
        """The size of every pool."""
        yield from self.blocks.stats()
        yield from self.radix.stats()

    def _side(self, engine: EngineKind) -> BlockPools | RadixPools:
        match engine:
            case EngineKind.VLLM:
                return self.blocks
            case EngineKind.SGLANG:
                return self.radix
            case _:
                assert_never(engine)

    def _of(self, worker: Worker) -> BlockPools | RadixPools:
        return self.blocks if worker in self.blocks else self.radix


def _apply_one(side: BlockPools | RadixPools, worker: Worker, event: KVEvent, delta: Delta) -> None:
    match event:
        case BlockStored():
            side.store(worker, event, delta)
        case BlockRemoved():
            side.drop(worker, event, delta)
        case AllBlocksCleared():
            delta.removed += side.clear(worker)
            delta.cleared += 1
            delta.lossy = False
            delta.record(("C",))
        case SkippedEvent():
            delta.skip(event.reason)
            delta.lossy = delta.lossy or event.lossy
        case _:
            assert_never(event)
