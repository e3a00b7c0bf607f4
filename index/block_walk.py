"""The walk of a prompt through a pool's tables: per worker, from the root to its first missing block."""

from __future__ import annotations

from collections.abc import Iterator

from index.filed import Slot, Walked
from index.prompt import Prompt
from index.request_key import RequestKey, prompt_keys
from index.worker import Medium


def walk(
    tables: dict[Slot, dict[RequestKey, int]], prompt: Prompt, block_size: int, alive: int, group: int
) -> list[Walked]:
    """Leading blocks of `group` of those workers (bits of `alive`) that hold the first one at least."""
    of_group = [tables.get((group, medium), {}) for medium in Medium]
    keys = prompt_keys(prompt, block_size)
    if not any(of_group[1:]):
        return _one_medium(of_group[0], keys, alive)
    counts = {bit: [0, 0, 0, 0] for bit in _bits(alive)}
    for key in keys:
        seen = 0
        for medium, table in enumerate(of_group):
            here = table.get(key, 0) & alive & ~seen
            seen |= here
            for bit in _bits(here):
                counts[bit][medium] += 1
        alive = seen
        if not alive:
            break
    return [
        (bit.bit_length() - 1, sum(media), media[0], media[1], media[2], media[3])
        for bit, media in counts.items()
        if any(media)
    ]


def _one_medium(table: dict[RequestKey, int], keys: Iterator[RequestKey], alive: int) -> list[Walked]:
    found: list[Walked] = []
    depth = 0
    get = table.get
    for key in keys if alive and table else ():
        still = alive & get(key, 0)
        if still != alive:
            found += _ended(alive ^ still, depth)
            alive = still
            if not alive:
                break
        depth += 1
    return found + _ended(alive, depth)


def _ended(workers: int, depth: int) -> list[Walked]:
    return [(bit.bit_length() - 1, depth, depth, 0, 0, 0) for bit in _bits(workers)] if depth else []


def _bits(mask: int) -> Iterator[int]:
    """The single bits of a mask, lowest first."""
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit
