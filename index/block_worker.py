"""What one vLLM worker holds: counted engine hashes per (group, medium), and the group layout its events show."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from index.event import BlockStored, EngineHash
from index.filed import Slot
from index.group_rules import GroupSpec
from index.orphans import Orphans
from index.request_key import RequestKey

MAX_GROUPS = 256
"""KV cache groups of one worker; engines have a few."""


@dataclass(slots=True)
class HashDomain:
    """Workers whose engine hashes mean the same: one map engine hash -> request key, shared by all of them.

    `mask` has the bits of its workers. `aliases` remembers further hashes of a key (an adapter loaded again), so that
    the map is emptied with the key's last holder. `keyless` are held hashes whose tokens are not known yet, with the
    numbers of their holders. The native core keeps all this itself; there a domain is its `number`.
    """

    keys: dict[EngineHash, RequestKey] = field(default_factory=dict)
    aliases: dict[RequestKey, set[EngineHash]] = field(default_factory=dict)
    keyless: dict[EngineHash, set[tuple[int, Slot]]] = field(default_factory=dict)
    mask: int = 0
    number: int = 0


@dataclass(slots=True)
class BlockWorker:
    """One worker's side of the block-hash index. `bit` is its place in the holders' masks.

    `held` and `doubled` are the Python core's (`BlockHolders`); nobody else touches them.
    """

    number: int
    domain: HashDomain
    eagle: bool = False
    match_unit: int | None = None
    held: dict[Slot, dict[EngineHash, int]] = field(default_factory=dict)
    doubled: dict[tuple[Slot, RequestKey], int] = field(default_factory=dict)
    groups: dict[int, GroupSpec] = field(default_factory=dict)
    partial_unit: int | None = None
    plain: bool = True
    """Whether the engine has one full-attention group, so that depth alone tells what it reuses."""
    orphans: Orphans = field(default_factory=Orphans)
    settled: set[int] = field(default_factory=set)
    """Groups whose block size is certain: a store of several whole blocks showed it, no partial entry does."""
    bit: int = field(init=False)

    def __post_init__(self) -> None:
        self.bit = 1 << self.number

    def contradicts(self, event: BlockStored) -> bool:
        """Whether the event's block size cannot be its group's: larger than what is certain."""
        return event.group in self.settled and event.block_size > self.groups[event.group].block_size

    def is_full_of_groups(self, event: BlockStored) -> bool:
        """Whether the event's group would be one too many: each store looks at all of them."""
        return event.group not in self.groups and len(self.groups) >= MAX_GROUPS

    def holdings(self, slot: Slot) -> dict[EngineHash, int]:
        """The counted hashes of one slot, made on first use."""
        held = self.held.get(slot)
        if held is None:
            held = self.held[slot] = {}
        return held

    def learn(self, event: BlockStored) -> bool:
        """Take a group's kind, window and block size from a store; a smaller size later is a partial entry.

        Whether that made the size certain.
        """
        if event.block_size <= 0 or not event.tokens:
            return False
        self._learn_layout(event)
        several = len(event.block_hashes) > 1
        whole = len(event.block_hashes) * event.block_size * 4 == len(event.tokens)
        if not (several and whole) or event.group in self.settled:
            return False
        self.settled.add(event.group)
        return True

    def _learn_layout(self, event: BlockStored) -> None:
        known, size = self.groups.get(event.group), event.block_size
        if known is not None:
            if size != known.block_size:
                unit = math.gcd(size, known.block_size)
                self.partial_unit = unit if self.partial_unit is None else math.gcd(self.partial_unit, unit)
            size = max(size, known.block_size)
            if size == known.block_size and event.kind in (None, known.kind):
                return
        kind = event.kind if event.kind is not None or known is None else known.kind
        window = event.window if event.window is not None or known is None else known.window
        self.groups[event.group] = GroupSpec(event.group, kind, size, window)
        self.judge_groups()

    def judge_groups(self) -> None:
        """Set `plain` anew: one group, number 0, of full attention."""
        self.plain = len(self.groups) == 1 and all(spec.is_full and spec.group == 0 for spec in self.groups.values())

    @property
    def full_group(self) -> int | None:
        """The group whose blocks are counted as matched: the first full-attention one."""
        full = [spec.group for spec in self.groups.values() if spec.is_full]
        return min(full) if full else None

    @property
    def block_size(self) -> int | None:
        """Tokens per block of the full-attention group; without one what all groups' blocks are multiples of."""
        group = self.full_group
        if group is not None:
            return self.groups[group].block_size
        return math.gcd(*(spec.block_size for spec in self.groups.values())) or None

    @property
    def hash_unit(self) -> int | None:
        """The engine's hash unit in tokens where request keys cannot follow its hashes; None where they can.

        They cannot where hashes are finer than, or differ between, the groups' blocks, nor without full attention:
        window and Mamba groups leave out hashes, and no other group tells which. The size of partial entries is the
        unit itself and outweighs what was declared: vLLM ignores `--prefix-match-unit` where a Mamba cache mode other
        than "align" is set, and until an engine with equal block sizes shows a partial entry, keys can follow it.
        """
        if self.plain:
            return None
        sizes = {spec.block_size for spec in self.groups.values()}
        if self.partial_unit is None and len(sizes) == 1 and self.full_group is not None:
            return None
        finer = self.partial_unit or self.match_unit
        return math.gcd(*sizes) if finer is None else math.gcd(finer, *sizes)
