"""The radix index: which SGLang worker holds which prefix, token by token, in one tree for all of them.

A pool is one model's workers with one page size and one unit width. Each namespace has a tree of its own. Runs are
compared by their tokens; wire hashes are opaque handles for parents and removals. The GPU tier counts repeated stores,
because the default event format hides that they lie in different namespaces; SGLang repeats itself in the other tiers,
so these are sets (sglang/srt/mem_cache/events.py, 0.5.22).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from index.delta import Delta
from index.dump import RadixDump
from index.event import BlockRemoved, BlockStored
from index.parked_runs import Run
from index.radix_dump import dump_radix, restore_radix
from index.radix_holder import handle_of, handles_of
from index.radix_holdings import Holdings
from index.radix_match import Held, deepest, match_prefix
from index.radix_tree import RUN_BYTES


class RadixIndex:
    """One pool. A worker is a small int, its slot: add it first, drop it last; nothing stays of one that is dropped."""

    def __init__(self, page_size: int, unit_bytes: int, run_bytes: int = RUN_BYTES) -> None:
        """`unit_bytes` is 4 for tokens, 8 for the bigrams of EAGLE. Runs above `run_bytes` are changed in parts."""
        self.page_size = page_size
        self.unit_bytes = unit_bytes
        self._holdings = Holdings(page_size * unit_bytes, run_bytes)

    @property
    def size_bytes(self) -> int:
        """Our own memory, estimated; 0 when nothing is held or parked."""
        return self._holdings.size_bytes

    @property
    def table_bytes(self) -> int:
        """The page table's part of `size_bytes`."""
        return self._holdings.tree.table.size_bytes

    @property
    def page_count(self) -> int:
        """Distinct pages in the tree, also those which nobody holds any more but which lead to others."""
        return self._holdings.tree.page_count

    @property
    def node_count(self) -> int:
        """How many runs the pages lie in."""
        return self._holdings.tree.node_count

    def pages(self, slot: int) -> tuple[int, int, int, int]:
        """How many pages a worker holds per medium."""
        gpu, cpu, disk, other = self._holdings.holders[slot].pages
        return gpu, cpu, disk, other

    def parked(self, slot: int) -> int:
        """How many of the worker's events wait for their parent."""
        return len(self._holdings.holders[slot].parked)

    def add(self, slot: int) -> None:
        """Admit a worker, which holds nothing yet."""
        self._holdings.add(slot)

    def drop(self, slot: int) -> None:
        """Forget a worker, at a cost proportional to what it held."""
        self._holdings.drop(slot)

    def clear(self, slot: int) -> int:
        """Empty a worker; answers how many (page, medium) holdings that were."""
        return self._holdings.clear(slot)

    def store(self, slot: int, event: BlockStored, namespace: str, delta: Delta) -> None:
        """Apply a store. A root run is filed under `namespace`, any other in the namespace of its parent.

        Skipped by reason: "shape" (sizes do not fit, or a hash comes twice), "cycle" (a run that is its own parent),
        "placeholder" (no tokens, and a hash that is not known).
        """
        hashes = handles_of(event.block_hashes)
        distinct = set(hashes)
        if not event.tokens:
            if not self._holdings.store_known(slot, hashes, event.medium, delta):
                delta.skip("placeholder")
        elif not self._is_whole(event) or len(distinct) != len(hashes):
            delta.skip("shape")
        else:
            parent = None if event.parent is None else handle_of(event.parent)
            if parent in distinct:
                delta.skip("cycle")
            else:
                self._store_run(slot, Run(parent, hashes, event.tokens, event.medium), namespace, delta)

    def dump(self, slot: int) -> RadixDump:
        """What a worker holds, run by run."""
        return dump_radix(self._holdings, slot, self.page_size, bigrams=self.unit_bytes == 8)

    def restore(self, slot: int, dump: RadixDump) -> None:
        """Hold again what was dumped; the worker must hold nothing."""
        restore_radix(self._holdings, slot, dump)

    def remove(self, slot: int, event: BlockRemoved, delta: Delta) -> None:
        """Apply a removal; pages the worker does not hold in that medium do not matter."""
        self._holdings.remove(slot, handles_of(event.block_hashes), event.medium, delta)

    def match(self, tokens: bytes, namespaces: Iterable[str], slots: int) -> list[Held]:
        """The workers of the bit set `slots` that hold a page or more of the prompt, in no order; lengths in units.

        `tokens` is the whole prompt in unit form. Of several namespaces a worker's longest match counts.
        """
        tree = self._holdings.tree
        roots = [tree.roots[name] for name in namespaces if name in tree.roots]
        found = [held for root in roots for held in match_prefix(root, tokens, tree.page_bytes, slots)]
        return deepest(found, self.page_size)

    def _is_whole(self, event: BlockStored) -> bool:
        return (
            event.block_size == self.page_size
            and event.bigrams == (self.unit_bytes == 8)
            and len(event.tokens) == len(event.block_hashes) * self.page_size * self.unit_bytes
        )

    def _store_run(self, slot: int, run: Run, namespace: str, delta: Delta) -> None:
        """File a run, then those that were parked for it, and those that were parked for them."""
        holdings = self._holdings
        place = holdings.below(slot, run.parent, namespace)
        if place is None:
            delta.orphans += len(run.hashes)
            holdings.holders[slot].parked.park(run)
            return
        holdings.store(slot, run, place, delta)
        waiting = holdings.holders[slot].parked.adopt(run.hashes)
        while waiting:
            run = waiting.pop(0)
            place = holdings.below(slot, run.parent, namespace)
            if place is not None:
                holdings.store(slot, run, place, delta)
                holdings.remove(slot, array("q", run.gone), run.medium, delta)
                waiting += holdings.holders[slot].parked.adopt(run.hashes)
