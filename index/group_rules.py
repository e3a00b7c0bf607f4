"""How far a vLLM engine continues from its cache: the lookup of its KV cache groups, told from the outside.

Mirrors vLLM 0.32 `v1/core/kv_cache_coordinator.py` (`UnitaryKVCacheCoordinator`, `HybridKVCacheCoordinator`) and the
`find_longest_cache_hit` of `v1/core/single_type_kv_cache_manager.py`, with a predicate in place of the block pool.

What the wire does not tell, and what is done about it:
- the chunk of chunked local attention: taken as full attention, which needs more blocks than the engine does;
- which groups an MTP draft model uses (`is_eagle_group`): EAGLE drops a block in every group. Too little where the
  engine drops it in some; too much only where a draft group has a spec of its own beside full attention and Mamba;
- a hash unit finer than every block size before the first partial entry: nothing is found until one comes, unless the
  unit is declared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

WINDOW_KINDS = frozenset({"sliding_window", "sliding_window_mla"})
MAMBA_KINDS = frozenset({"mamba"})


class GroupSpec(NamedTuple):
    """One KV cache group as its events show it. Sizes are tokens; a kind that is not known counts as full attention."""

    group: int
    kind: str | None
    block_size: int
    window: int | None

    @property
    def is_window(self) -> bool:
        """Whether only the last `window` tokens are looked up."""
        return self.kind in WINDOW_KINDS and self.window is not None

    @property
    def is_mamba(self) -> bool:
        """Whether a hit needs one state, not a run of blocks."""
        return self.kind in MAMBA_KINDS

    @property
    def is_full(self) -> bool:
        """Whether every block from the first on is needed."""
        return not (self.is_window or self.is_mamba)


Held = Callable[[int, int], bool]
"""(group, end) -> does the group hold the block whose last token is `end` (tokens from the prompt's start)?"""


class Lookup(NamedTuple):
    """The lengths of one lookup, in tokens: hash unit, what hits are multiples of, the prompt's hashed length."""

    unit: int
    alignment: int
    hashed: int
    eagle: bool

    @property
    def fine(self) -> bool:
        """Whether hits may end inside a block (Mamba "align" with a hash unit below the block size)."""
        return self.alignment == self.unit


def reusable_tokens(
    groups: Sequence[GroupSpec], held: Held, prompt_tokens: int, match_unit: int | None, eagle: bool
) -> int:
    """Tokens that an engine with these groups skips for a prompt of `prompt_tokens`.

    `match_unit` is `--prefix-match-unit` or the size of partial entries, None when hashes are per block.
    """
    specs = _joined(groups)
    sizes = [spec[0].block_size for spec in specs]
    unit = match_unit or math.gcd(*sizes)
    if any(size % unit for size in sizes):
        unit = math.gcd(*sizes)
    fine = _fine_hits([spec[0] for spec in specs], unit)
    lookup = Lookup(unit, unit if fine else math.lcm(*sizes), prompt_tokens // unit * unit, eagle)
    limit = prompt_tokens - 1
    if len(groups) == 1:
        return max(0, _find(specs[0], held, limit, lookup, drop=eagle))
    return max(0, _fixed_point(specs, held, limit, lookup))


def _joined(groups: Sequence[GroupSpec]) -> list[list[GroupSpec]]:
    """Groups of one spec are looked up together; full attention comes first."""
    by_spec: dict[tuple[str | None, int, int | None], list[GroupSpec]] = {}
    for group in groups:
        by_spec.setdefault((group.kind, group.block_size, group.window), []).append(group)
    return sorted(by_spec.values(), key=lambda spec: not spec[0].is_full)


def _fine_hits(specs: Sequence[GroupSpec], unit: int) -> bool:
    """`partial_hash_hits_enabled`: a Mamba block above the unit, and no window group that needs whole blocks."""
    mamba = any(spec.is_mamba and spec.block_size > unit for spec in specs)
    return mamba and all(spec.block_size == unit for spec in specs if spec.is_window)


def _fixed_point(specs: list[list[GroupSpec]], held: Held, limit: int, lookup: Lookup) -> int:
    """Each group accepts the length or shrinks it; repeat until stable (one round for full attention and one other)."""
    simple = len(specs) == 2 and specs[0][0].is_full
    length = limit
    full_hits: dict[int, int] = {}
    verified: set[int] = set()
    while True:
        current = length
        for index, spec in enumerate(specs):
            if index in full_hits:
                current = min(current, full_hits[index])
                continue
            drop = lookup.eagle and index not in verified
            margin = _eagle_margin(spec[0], lookup) if drop and not spec[0].is_mamba else 0
            bound = min(current + margin, lookup.hashed) if margin else current
            found = _find(spec, held, bound, lookup, drop=drop)
            if drop:
                verified.add(index)
            elif found < current:
                verified.clear()
            current = found
            if spec[0].is_full:
                full_hits[index] = found
        if current >= length:
            return length
        length = current
        if simple:
            return length


def _eagle_margin(spec: GroupSpec, lookup: Lookup) -> int:
    """`eagle_proof_margin`: EAGLE looks one unit further and drops it again."""
    if lookup.fine and not spec.is_window and spec.block_size > lookup.unit:
        return lookup.unit
    return spec.block_size


def _find(spec: list[GroupSpec], held: Held, bound: int, lookup: Lookup, drop: bool) -> int:
    def has(end: int) -> bool:
        return all(held(group.group, end) for group in spec)

    if spec[0].is_window:
        return _find_window(spec[0], has, bound, lookup, drop)
    if spec[0].is_mamba:
        return _find_mamba(spec[0], has, bound, lookup)
    return _find_full(spec[0], has, bound, lookup, drop)


def _find_full(spec: GroupSpec, has: Callable[[int], bool], bound: int, lookup: Lookup, drop: bool) -> int:
    """`FullAttentionManager`: left to right, then the highest partial entry in the first block that is missing."""
    size = spec.block_size
    hit = 0
    while hit + size <= bound and has(hit + size):
        hit += size
    if lookup.fine and lookup.alignment < size:
        last = min(hit + size - lookup.unit, bound // lookup.unit * lookup.unit, lookup.hashed)
        for end in range(last, hit, -lookup.unit):
            if has(end):
                hit = end
                break
    if drop and hit > 0:
        hit -= min(lookup.alignment, size)
    return hit - hit % lookup.alignment


def _find_window(spec: GroupSpec, has: Callable[[int], bool], bound: int, lookup: Lookup, drop: bool) -> int:
    """`SlidingWindowManager`: right to left, the first run long enough that ends on an aligned boundary."""
    size, alignment = spec.block_size, lookup.alignment
    needed = -(-(max(spec.window or 1, 1) - 1) // size) + (1 if drop else 0)
    run, blocks = 0, 0
    for index in range(bound // size - 1, -1, -1):
        if not has((index + 1) * size):
            run = 0
            continue
        if run == 0 and size != alignment and (index if drop else index + 1) * size % alignment:
            continue
        run += 1
        if run >= needed:
            blocks = index + run
            break
    else:
        blocks = _aligned_blocks(run, size, alignment)
    if drop and blocks:
        blocks = _aligned_blocks(blocks - 1, size, alignment)
    return blocks * size


def _aligned_blocks(blocks: int, size: int, alignment: int) -> int:
    while size != alignment and blocks * size % alignment:
        blocks -= 1
    return blocks


def _find_mamba(spec: GroupSpec, has: Callable[[int], bool], bound: int, lookup: Lookup) -> int:
    """`MambaManager`: the last state that lies on a boundary."""
    size, alignment = spec.block_size, lookup.alignment
    if alignment < size and size % alignment == 0:
        top = min(bound // alignment * alignment, lookup.hashed)
        return next((end for end in range(top, 0, -alignment) if has(end)), 0)
    for end in range(bound // size * size, 0, -size):
        if end % alignment == 0 and has(end):
            return end
    return 0
