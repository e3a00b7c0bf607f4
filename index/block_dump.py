"""A vLLM worker's holdings out of the index and into it again, and recorded operations done again."""

from __future__ import annotations

from index.block_index import BlockIndex
from index.block_worker import BlockWorker
from index.delta import Delta
from index.dump import BlockDump, Operation, SlotDump, split_keys
from index.event import BlockRemoved, BlockStored, EngineHash
from index.worker import Medium


def dump_blocks(index: BlockIndex, worker: BlockWorker) -> BlockDump:
    """Everything a worker holds, with the group layout its events showed."""
    keys = worker.domain.keys
    slots = []
    for (group, medium), held in worker.held.items():
        hashes = [block for block in held if block in keys]
        keyless = [block for block in held if block not in keys] if len(hashes) < len(held) else []
        counts = {block: count for block, count in held.items() if count > 1}
        joined = b"".join([keys[block] for block in hashes])
        slots.append(SlotDump(group, int(medium), hashes, joined, keyless, counts))
    groups = list(worker.groups.values())
    return BlockDump(index.block_size, groups, worker.partial_unit, slots, not worker.orphans)


def restore_blocks(index: BlockIndex, worker: BlockWorker, dump: BlockDump) -> None:
    """Hold again what was dumped; a hash that means something else in the worker's domain by now is left out."""
    worker.groups = {spec.group: spec for spec in dump.groups}
    worker.partial_unit = dump.partial_unit
    worker.judge_groups()
    for slot in dump.slots:
        at = (slot.group, Medium(slot.medium))
        index.hold(worker, at, slot.hashes, split_keys(slot.keys))
        for block in slot.keyless:
            index.hold_by_hash(worker, at, block)
        held = worker.holdings(at)
        for block, count in slot.counts.items():
            if block in held:
                held[block] = count
        if not held:
            del worker.held[at]


def redo_blocks(index: BlockIndex, worker: BlockWorker, operation: Operation) -> bool:
    """Do a recorded store or removal again; False when it does not fit what is held."""
    match operation:
        case ("S", int(group), int(medium), kind, window, int(size), list(hashes), bytes(keys), list(keyless)):
            if size:
                _learn(worker, group, kind, window, size)
            _store_again(index, worker, (group, Medium(medium)), hashes, keys)
            for block in keyless:
                index.hold_by_hash(worker, (group, Medium(medium)), block)
            return True
        case ("R", int(group), int(medium), list(hashes)):
            index.remove(worker, BlockRemoved(hashes, Medium(medium), group), Delta())
            return True
        case _:
            return False


def _store_again(
    index: BlockIndex, worker: BlockWorker, slot: tuple[int, Medium], hashes: list[EngineHash], keys: bytes
) -> None:
    if worker.held.get(slot, {}).keys().isdisjoint(hashes) and len(set(hashes)) == len(hashes):
        index.hold(worker, slot, hashes, split_keys(keys))
        return
    for block, key in zip(hashes, split_keys(keys), strict=True):
        held = worker.held.get(slot, {})
        if block in held:
            held[block] += 1
        else:
            index.hold(worker, slot, [block], [key])


def _learn(worker: BlockWorker, group: int, kind: object, window: object, size: int) -> None:
    known = worker.groups.get(group)
    if known is not None and known.block_size == size and (kind is None or known.kind == kind):
        return
    text = kind if isinstance(kind, str) else None
    width = window if isinstance(window, int) else None
    worker.learn(BlockStored([], None, b"\0\0\0\0", size, group=group, kind=text, window=width))
