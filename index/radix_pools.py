"""All SGLang workers, each in the pool of its model, page size and unit width, which its stores tell."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import chain

from index.delta import AppliedPayload, AppliedRun, Delta
from index.dump import Operation, RadixDump, RunDump
from index.event import BlockRemoved, BlockStored
from index.native import Core
from index.page_hash import lora_id
from index.pool import PoolStats, WorkerSpec
from index.prompt import Prompt, WorkerMatch
from index.radix_dump import HANDLE_BYTES, is_closed, store_operation, stored_event
from index.radix_match import Held, deepest
from index.radix_member import BIGRAM_BYTES, Member, Pool
from index.radix_namespace import NamespaceRequest, RadixNamespaces
from index.radix_native import NativeRadixIndex, radix_index
from index.radix_units import bigrams, reusable_units
from index.worker import EngineKind, Medium, Worker

TOKEN_BYTES = 4


class RadixPools:
    """The SGLang side of the index."""

    def __init__(self, core: Core | None = None) -> None:
        self._core = core
        self._members: dict[Worker, Member] = {}
        self._pools: dict[tuple[str, int, int], Pool] = {}

    def __contains__(self, worker: Worker) -> bool:
        return worker in self._members

    def add(self, worker: Worker, spec: WorkerSpec) -> None:
        """Take in a worker; it joins a pool with its first store."""
        self._members[worker] = Member(spec)

    def respec(self, worker: Worker, spec: WorkerSpec) -> None:
        """Take over what was learnt of a worker later."""
        member = self._members[worker]
        member.spec = spec
        if member.pool is not None:
            member.enter(member.pool)

    def hint(self, worker: Worker, dynamo: bool | None, adapters: Mapping[str, str] | None, *, anew: bool) -> bool:
        """What the engine says of itself: whether its event hashes carry the namespace, its adapters' paths by name.

        None: it did not say. `anew`: it is another process than the one that said so before. Whether an adapter was
        loaded again, so that what is held of it counts no more.
        """
        member = self._members[worker]
        member.dynamo = bool(dynamo)
        if anew:
            member.adapters = None
        loaded_again = adapters is not None and member.serve(adapters)
        if member.pool is not None and member.dynamo:
            member.pool.namespaces.expect_dynamo(member.slot)
        return loaded_again

    def misfiled(self, worker: Worker) -> bool:
        """Whether roots were filed as others, before the worker's hashes could be read: clear it, get them again."""
        member = self._members[worker]
        return member.pool is not None and member.pool.namespaces.is_misfiled(member.slot)

    def adapter_doubted(self, worker: Worker, lora: str) -> bool:
        """Whether what it holds of an adapter may be of a load before the present one."""
        member = self._members[worker]
        return member.pool is not None and member.pool.namespaces.loads.is_doubted(member.slot, lora)

    def remove(self, worker: Worker) -> None:
        """Free a worker and all it alone held."""
        self._leave(self._members.pop(worker))

    def clear(self, worker: Worker) -> int:
        """Forget a worker's holdings; returns their number."""
        member = self._members[worker]
        if member.pool is None:
            return 0
        member.pool.namespaces.cleared(member.slot)
        return member.pool.index.clear(member.slot)

    def restart(self, worker: Worker) -> int:
        """A new engine process: forget holdings and the pool, which its events will tell again."""
        cleared, member = self.clear(worker), self._members[worker]
        self._leave(member)
        member.adapters = None
        return cleared

    def store(self, worker: Worker, event: BlockStored, delta: Delta) -> None:
        """Apply one store."""
        member = self._members[worker]
        if not event.tokens or event.block_size <= 0:
            if member.pool is None:
                delta.skip("placeholder")
                return
        elif not self._place(worker, member, event):
            delta.skip("block_size")
            delta.lossy = True
            return
        pool = member.pool
        assert pool is not None
        namespace, label = ("", "") if event.parent is not None else member.file(pool, event, delta)
        pool.index.store(member.slot, event, namespace, delta)
        delta.record(store_operation(event, label))

    def apply_payload(self, worker: Worker, payload: bytes, record: bool) -> AppliedPayload | None:
        """Apply a payload without decoding it in Python; None, and no change, where that cannot be done.

        It stops before an event that changes the pool or clears the worker, and before a placeholder.
        """
        member = self._members[worker]
        pool = member.pool
        if pool is None or not isinstance(pool.index, NativeRadixIndex):
            return None
        batch = pool.index.plain_batch(payload)
        if batch is None:
            return None
        delta, at = Delta(operations=[] if record else None), 0
        while (at := pool.index.apply(member.slot, batch, at, delta)) < len(batch):
            root = batch.head(at)
            if not isinstance(root, BlockStored) or not pool.has_root(root):
                break
            pool.index.store_plain(member.slot, batch, at, member.file(pool, root, delta), delta)
            at += 1
        stores, removals, _ = batch.counts
        return AppliedPayload(batch.ts, len(batch), at, stores, removals, delta)

    def apply_payloads(self, worker: Worker, payloads: list[bytes], record: bool) -> AppliedRun:
        """Apply the first of the payloads without decoding them in Python, as far as that can be done."""
        whole: list[AppliedPayload] = []
        for payload in payloads:
            applied = self.apply_payload(worker, payload, record)
            if applied is None:
                break
            if not applied.is_whole:
                return AppliedRun.of(whole, record, begun=applied)
            whole.append(applied)
        return AppliedRun.of(whole, record)

    def drop(self, worker: Worker, event: BlockRemoved, delta: Delta) -> None:
        """Apply one removal."""
        member = self._members[worker]
        if member.pool is not None:
            member.pool.index.remove(member.slot, event, delta)
            delta.record(("r", int(event.medium), event.block_hashes))

    def redo(self, worker: Worker, operation: Operation) -> bool:
        """Do a recorded store or removal again. False: it does not fit what is held."""
        member = self._members[worker]
        match operation:
            case ("s", *fields):
                event, label = stored_event(fields)
                if event.tokens and not self._place(worker, member, event):
                    return True
                if member.pool is None:
                    return False
                root = event.parent is None
                namespace = member.relearn(member.pool, label, event.block_hashes, event.tokens) if root else label
                member.pool.index.store(member.slot, event, namespace, Delta())
                return True
            case ("r", int(medium), list(hashes)) if member.pool is not None:
                member.pool.index.remove(member.slot, BlockRemoved(hashes, Medium(medium)), Delta())
                return True
            case _:
                return False

    def dump(self, worker: Worker) -> RadixDump | None:
        """What the worker holds; None before its first store."""
        member = self._members[worker]
        if member.pool is None:
            return None
        namespaces, dump = member.pool.namespaces, member.pool.index.dump(member.slot)
        runs = [run if run.parent is not None else _labelled(run, member, namespaces) for run in dump.runs]
        genuine, whole = namespaces.is_genuine(member.slot), dump.whole and is_closed(runs)
        return dump._replace(
            genuine=genuine, runs=runs, whole=whole, reloaded=namespaces.loads.names_again(member.slot)
        )

    def restore(self, worker: Worker, dump: RadixDump) -> None:
        """Hold again what was dumped. The worker must hold nothing."""
        member = self._members[worker]
        self._place(worker, member, BlockStored([], None, b"", dump.page_size, bigrams=dump.bigrams))
        assert member.pool is not None
        if dump.genuine:
            member.pool.namespaces.expect_dynamo(member.slot)
        for name in dump.reloaded:
            member.pool.namespaces.load_again(member.slot, name)
        runs = [run if run.parent is not None else _relearnt(run, member, member.pool) for run in dump.runs]
        member.pool.index.restore(member.slot, dump._replace(runs=runs))

    def match(
        self, model: str, prompt: Prompt, only: Collection[Worker], lora_path: str | None
    ) -> Iterator[WorkerMatch]:
        """The matches of those of `only` that hold pages, each in its own pool."""
        for pool in [pool for (of, _, _), pool in self._pools.items() if of == model]:
            slots = sum(1 << slot for slot, worker in pool.names.items() if worker in only)
            if not slots:
                continue
            tokens = bigrams(prompt.tokens) if pool.eagle else prompt.tokens
            for held in _match(pool, tokens, _request(prompt, lora_path), slots):
                reusable = reusable_units(held.units, prompt.length, pool.index.page_size, eagle=pool.eagle)
                yield WorkerMatch(pool.names[held.slot], held.units, reusable, held.by_medium)

    def counts(self, worker: Worker) -> tuple[int, int, int, int]:
        """Held pages per medium (gpu, cpu, disk, other)."""
        member = self._members[worker]
        return member.pool.index.pages(member.slot) if member.pool else (0, 0, 0, 0)

    def block_size(self, worker: Worker) -> int | None:
        """Tokens per page as the events tell it; None before any."""
        pool = self._members[worker].pool
        return pool.index.page_size if pool else None

    def parked(self, worker: Worker) -> int:
        """Stores that wait for their parent."""
        member = self._members[worker]
        return member.pool.index.parked(member.slot) if member.pool else 0

    def stats(self) -> Iterator[PoolStats]:
        """The size of every pool that has workers."""
        for (model, size, _), pool in self._pools.items():
            holders = sum(sum(pool.index.pages(slot)) for slot in pool.names)
            pages, size_bytes = pool.index.page_count, pool.index.size_bytes
            yield PoolStats(model, EngineKind.SGLANG, size, len(pool.names), pages, holders, size_bytes)

    def _place(self, worker: Worker, member: Member, event: BlockStored) -> bool:
        """Into the pool of the event's page size and units; False for another one than that of what it holds."""
        units = BIGRAM_BYTES if event.bigrams else TOKEN_BYTES
        place = (member.spec.model, event.block_size, units)
        pool = self._pools.get(place)
        if pool is not None and pool is member.pool:
            return True
        if member.pool is not None and any(member.pool.index.pages(member.slot)):
            return False
        self._leave(member)
        if pool is None:
            page_bytes = event.block_size * units
            pool = Pool(
                member.spec.model, radix_index(event.block_size, units, self._core), RadixNamespaces(page_bytes)
            )
            self._pools[place] = pool
        member.pool, member.slot = pool, pool.free.pop() if pool.free else len(pool.names)
        pool.names[member.slot] = worker
        pool.index.add(member.slot)
        member.enter(pool)
        return True

    def _leave(self, member: Member) -> None:
        pool, member.pool = member.pool, None
        if pool is None:
            return
        pool.index.drop(member.slot)
        pool.namespaces.forget(member.slot)
        del pool.names[member.slot]
        pool.free.append(member.slot)
        if not pool.names:
            self._pools.pop((pool.model, pool.index.page_size, pool.index.unit_bytes))


def _match(pool: Pool, tokens: bytes, request: NamespaceRequest, slots: int) -> list[Held]:
    places = pool.namespaces.places(tokens, request, slots)
    found = [pool.index.match(tokens, place.names, place.slots) for place in places]
    return found[0] if len(found) == 1 else deepest(chain.from_iterable(found), 1)


def _labelled(run: RunDump, member: Member, namespaces: RadixNamespaces) -> RunDump:
    return run._replace(namespace=namespaces.label(member.slot, run.namespace))


def _relearnt(run: RunDump, member: Member, pool: Pool) -> RunDump:
    if len(run.hashes) < HANDLE_BYTES:
        return run
    first = int.from_bytes(run.hashes[:HANDLE_BYTES], "little", signed=True)
    return run._replace(namespace=member.relearn(pool, run.namespace, [first], run.tokens))


def _request(prompt: Prompt, lora_path: str | None) -> NamespaceRequest:
    ids = () if prompt.lora is None or lora_path is None else (lora_id(prompt.lora, lora_path),)
    return NamespaceRequest(prompt.lora, prompt.cache_salt, prompt.extra_key, ids)
