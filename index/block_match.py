"""Match a prompt against a block-hash pool: per worker, walk from the root and stop at its first missing block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from index.block_index import BlockIndex
from index.block_worker import BlockWorker
from index.engine_chain import EngineChain
from index.group_rules import Held, reusable_tokens
from index.prompt import Prompt
from index.request_key import RequestKey, prompt_keys

MediumCounts = tuple[int, int, int, int]
NOTHING = (0, 0, 0, 0, 0)


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


def match_grouped(
    index: BlockIndex, prompt: Prompt, numbers: Iterable[int], chains: Mapping[int, EngineChain]
) -> Iterator[tuple[int, Depth]]:
    """The depths of workers with other groups, by number: of those named in `chains` by their engine's own hashes."""
    keys = LazyKeys(prompt, index.block_size)
    for number in numbers:
        yield number, _grouped(index, prompt, index.workers[number], keys, chains.get(number))


def _grouped(
    index: BlockIndex, prompt: Prompt, worker: BlockWorker, keys: LazyKeys, chain: EngineChain | None
) -> Depth:
    """A worker with several KV cache groups, or one that is not full attention."""
    full, size = worker.full_group, index.block_size
    if chain is not None:
        unit, held = chain.unit, chain.holds(index.holders, worker)
    else:
        unit, held = None, _holds_keys(index, worker, keys)
    groups = [worker.groups[group] for group in sorted(worker.groups)]
    reusable = reusable_tokens(groups, held, prompt.length, unit, worker.eagle)
    if full is None:
        return Depth(reusable, reusable, (reusable, 0, 0, 0))
    walked = index.holders.walk_one(prompt, worker, full)
    matched, gpu, cpu, disk, other = (blocks * size for blocks in (walked[0][1:] if walked else NOTHING))
    extra = max(0, reusable - matched)
    return Depth(matched + extra, reusable, (gpu + extra, cpu, disk, other))


def _holds_keys(index: BlockIndex, worker: BlockWorker, keys: LazyKeys) -> Held:
    size = index.block_size

    def held(group: int, end: int) -> bool:
        key = keys[end // size - 1] if end % size == 0 else None
        return key is not None and index.holders.holds_key(worker, group, key)

    return held
