"""Match a prompt against a block-hash pool: per worker, walk from the root and stop at its first missing block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from index.block_index import BlockIndex
from index.block_worker import BlockWorker
from index.engine_chain import EngineChain
from index.group_rules import Held, reusable_tokens
from index.prompt import Prompt
from index.request_key import RequestKey, prompt_keys
from index.worker import Medium

MediumCounts = tuple[int, int, int, int]
NOTHING: MediumCounts = (0, 0, 0, 0)


class Depth(NamedTuple):
    """One worker's answer in tokens: leading run, what the engine skips, and the run split over the media."""

    matched: int
    reusable: int
    by_medium: MediumCounts


class LazyKeys:
    """A prompt's request keys by position, computed no further than asked."""

    def __init__(self, prompt: Prompt, block_size: int) -> None:
        self._keys: list[RequestKey] = []
        self._rest = prompt_keys(prompt, block_size)

    def __getitem__(self, index: int) -> RequestKey | None:
        while len(self._keys) <= index:
            key = next(self._rest, None)
            if key is None:
                return None
            self._keys.append(key)
        return self._keys[index]

    def __iter__(self) -> Iterator[RequestKey]:
        index = 0
        while (key := self[index]) is not None:
            yield key
            index += 1


def match_blocks(
    index: BlockIndex, prompt: Prompt, workers: Mapping[int, BlockWorker], chains: Mapping[int, EngineChain]
) -> dict[int, Depth]:
    """Depths of those workers that hold anything, by bit. `chains` re-derive hashes that keys cannot follow."""
    keys = LazyKeys(prompt, index.block_size)
    answers: dict[int, Depth] = {}
    plain = 0
    for bit, worker in workers.items():
        if worker.plain:
            plain |= bit
        else:
            answers[bit] = _grouped(index, prompt, worker, keys, chains.get(bit))
    for bit, (depth, media) in _walk(index, keys, plain, 0).items():
        answers[bit] = _plain_depth(index.block_size, prompt.length, workers[bit].eagle, depth, media)
    return answers


def _plain_depth(size: int, prompt_tokens: int, eagle: bool, depth: int, media: MediumCounts) -> Depth:
    """`UnitaryKVCacheCoordinator` with full attention: at most prompt - 1, whole blocks, EAGLE drops one."""
    blocks = min(depth, (prompt_tokens - 1) // size)
    if eagle and blocks > 0:
        blocks -= 1
    gpu, cpu, disk, other = media
    return Depth(depth * size, blocks * size, (gpu * size, cpu * size, disk * size, other * size))


def _walk(index: BlockIndex, keys: LazyKeys, alive: int, group: int) -> dict[int, tuple[int, MediumCounts]]:
    """Leading blocks of `group` per worker bit, counted by fastest medium."""
    tables = [index.tables.get((group, medium), {}) for medium in Medium]
    if not any(tables[1:]):
        return _walk_one_medium(tables[0], keys, alive)
    counts = {bit: [0, 0, 0, 0] for bit in _bits(alive)}
    for key in keys:
        seen = 0
        for medium, table in enumerate(tables):
            here = table.get(key, 0) & alive & ~seen
            seen |= here
            for bit in _bits(here):
                counts[bit][medium] += 1
        alive = seen
        if not alive:
            break
    return {bit: (sum(media), (media[0], media[1], media[2], media[3])) for bit, media in counts.items()}


def _walk_one_medium(table: dict[RequestKey, int], keys: LazyKeys, alive: int) -> dict[int, tuple[int, MediumCounts]]:
    depths: dict[int, tuple[int, MediumCounts]] = {}
    depth = 0
    get = table.get
    for key in keys if alive and table else ():
        still = alive & get(key, 0)
        if still != alive:
            if depth:
                for bit in _bits(alive ^ still):
                    depths[bit] = depth, (depth, 0, 0, 0)
            alive = still
            if not alive:
                break
        depth += 1
    if depth:
        for bit in _bits(alive):
            depths[bit] = depth, (depth, 0, 0, 0)
    return depths


def _grouped(
    index: BlockIndex, prompt: Prompt, worker: BlockWorker, keys: LazyKeys, chain: EngineChain | None
) -> Depth:
    """A worker with several KV cache groups, or one that is not full attention."""
    full, size = worker.full_group, index.block_size
    if chain is not None:
        unit, held = chain.unit, chain.holds(worker)
    else:
        unit, held = None, _holds_keys(index, worker, keys)
    groups = [worker.groups[group] for group in sorted(worker.groups)]
    reusable = reusable_tokens(groups, held, prompt.length, unit, worker.eagle)
    if full is None:
        return Depth(reusable, reusable, (reusable, 0, 0, 0))
    depth, media = _walk(index, keys, worker.bit, full).get(worker.bit, (0, NOTHING))
    gpu, cpu, disk, other = (blocks * size for blocks in media)
    extra = max(0, reusable - depth * size)
    return Depth(depth * size + extra, reusable, (gpu + extra, cpu, disk, other))


def _holds_keys(index: BlockIndex, worker: BlockWorker, keys: LazyKeys) -> Held:
    size, bit = index.block_size, worker.bit
    tables: dict[int, list[dict[RequestKey, int]]] = {}
    for (group, _), table in index.tables.items():
        tables.setdefault(group, []).append(table)

    def held(group: int, end: int) -> bool:
        key = keys[end // size - 1] if end % size == 0 else None
        return key is not None and any(table.get(key, 0) & bit for table in tables.get(group, ()))

    return held


def _bits(mask: int) -> Iterator[int]:
    """The single bits of a mask, lowest first."""
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit
