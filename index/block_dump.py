"""A vLLM worker's holdings out of the index and into it again, and recorded operations done again."""

from __future__ import annotations

from index.block_index import BlockIndex
from index.block_worker import BlockWorker
from index.delta import Delta
from index.dump import BlockDump, Operation, SlotDump
from index.event import BlockRemoved, BlockStored, EngineHash
from index.worker import Medium


def dump_blocks(index: BlockIndex, worker: BlockWorker) -> BlockDump:
    """Everything a worker holds, with the group layout its events showed."""
    slots = [
        SlotDump(group, int(medium), hashes, keys, keyless, counts)
        for (group, medium), hashes, keys, keyless, counts in index.holders.slots(worker)
    ]
    groups = list(worker.groups.values())
    whole, settled = not worker.orphans, sorted(worker.settled)
    return BlockDump(index.block_size, groups, worker.partial_unit, slots, whole, settled)


def restore_blocks(index: BlockIndex, worker: BlockWorker, dump: BlockDump) -> None:
    """Hold again what was dumped; a hash that means something else in the worker's domain by now is left out."""
    worker.groups = {spec.group: spec for spec in dump.groups}
    worker.partial_unit = dump.partial_unit
    worker.settled = worker.groups.keys() & dump.settled
    worker.judge_groups()
    index.learnt(worker)
    for slot in dump.slots:
        at = (slot.group, Medium(slot.medium))
        index.holders.hold(worker, at, slot.hashes, slot.keys)
        for block in slot.keyless:
            index.hold_by_hash(worker, at, block)
        index.holders.recount(worker, at, slot.counts)


def record_store(index: BlockIndex, blocks: BlockWorker, event: BlockStored, delta: Delta, whole: bool) -> None:
    """Note a store that was applied, so that it can be done again. Not `whole`: that would not come to the same."""
    if not whole:
        delta.operations = None
        return
    keys = index.holders.keys_of(blocks, event.block_hashes)
    hashes = event.block_hashes
    keyless: list[EngineHash] = []
    if None in keys:
        pairs = list(zip(hashes, keys, strict=True))
        keyless = [block for block, key in pairs if key is None] if event.tokens else []
        hashes = [block for block, key in pairs if key is not None]
    joined = b"".join(key for key in keys if key is not None)
    size = event.block_size if event.tokens else 0
    delta.record(("S", event.group, int(event.medium), event.kind, event.window, size, hashes, joined, keyless))


def redo_blocks(index: BlockIndex, worker: BlockWorker, operation: Operation) -> bool:
    """Do a recorded store or removal again; False when it does not fit what is held."""
    match operation:
        case ("S", int(group), int(medium), kind, window, int(size), list(hashes), bytes(keys), list(keyless)):
            if size:
                _learn(worker, group, kind, window, size)
                index.learnt(worker)
            index.holders.hold(worker, (group, Medium(medium)), hashes, keys)
            for block in keyless:
                index.hold_by_hash(worker, (group, Medium(medium)), block)
            return True
        case ("B", int(group), kind, window, int(size)) if size > 0:
            _learn(worker, group, kind, window, size)
            worker.settled.add(group)
            index.learnt(worker)
            return True
        case ("R", int(group), int(medium), list(hashes)):
            index.remove(worker, BlockRemoved(hashes, Medium(medium), group), Delta())
            return True
        case _:
            return False


def _learn(worker: BlockWorker, group: int, kind: object, window: object, size: int) -> None:
    known = worker.groups.get(group)
    if known is not None and known.block_size == size and (kind is None or known.kind == kind):
        return
    text = kind if isinstance(kind, str) else None
    width = window if isinstance(window, int) else None
    worker.learn(BlockStored([], None, b"\0\0\0\0", size, group=group, kind=text, window=width))
