"""The radix index of the native core, with the interface of index/radix.py, and which of the two serves."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import TYPE_CHECKING

from index import native
from index.delta import Delta
from index.dump import RadixDump, RunDump
from index.event import BlockRemoved, BlockStored
from index.radix import RadixIndex
from index.radix_label import Filing
from index.radix_match import Held

if TYPE_CHECKING:
    from index import _core
    from index._core import PlainBatch


class NativeRadixIndex:
    """As `RadixIndex`, whose promises hold; the same answers, counts and dumps.

    Further skips of `store`: "too_long" (a sequence of more than 2^28 pages).
    """

    def __init__(self, module: ModuleType, page_size: int, unit_bytes: int) -> None:
        """`module` is `index._core`; `unit_bytes` is 4 for tokens, 8 for the bigrams of EAGLE."""
        self.page_size = page_size
        self.unit_bytes = unit_bytes
        self._module = module
        self._core: _core.RadixIndex = module.RadixIndex(page_size, unit_bytes)

    @property
    def size_bytes(self) -> int:
        """Our own memory; 0 when nothing is held or parked."""
        return self._core.size_bytes

    @property
    def table_bytes(self) -> int:
        """The page table's part of `size_bytes`."""
        return self._core.table_bytes

    @property
    def page_count(self) -> int:
        """Distinct pages in the tree, also those which nobody holds any more but which lead to others."""
        return self._core.page_count

    @property
    def node_count(self) -> int:
        """How many runs the pages lie in."""
        return self._core.node_count

    def pages(self, slot: int) -> tuple[int, int, int, int]:
        """How many pages a worker holds per medium."""
        return self._core.pages(slot)

    def parked(self, slot: int) -> int:
        """How many of the worker's events wait for their parent."""
        return self._core.parked(slot)

    def add(self, slot: int) -> None:
        """Admit a worker, which holds nothing yet."""
        self._core.add(slot)

    def drop(self, slot: int) -> None:
        """Forget a worker, at a cost proportional to what it held."""
        self._core.drop(slot)

    def clear(self, slot: int) -> int:
        """Empty a worker; answers how many (page, medium) holdings that were."""
        return self._core.clear(slot)

    def store(self, slot: int, event: BlockStored, namespace: str, delta: Delta) -> None:
        """Apply a store. A root run is filed under `namespace`, any other in the namespace of its parent."""
        self._core.store(slot, event, namespace, delta)

    def remove(self, slot: int, event: BlockRemoved, delta: Delta) -> None:
        """Apply a removal; pages the worker does not hold in that medium do not matter."""
        self._core.remove(slot, event, delta)

    def match(self, tokens: bytes, namespaces: Iterable[str], slots: int) -> list[Held]:
        """The workers of the bit set `slots` that hold a page or more of the prompt, in no order; lengths in units."""
        return self._core.match(tokens, list(namespaces), slots, Held)

    def dump(self, slot: int) -> RadixDump:
        """What a worker holds, run by run."""
        runs = [RunDump(*run) for run in self._core.dump(slot)]
        copies, whole = self._core.copies(slot), not self._core.parked(slot)
        return RadixDump(self.page_size, self.unit_bytes == 8, False, runs, copies, whole)

    def restore(self, slot: int, dump: RadixDump) -> None:
        """Hold again what was dumped; the worker must hold nothing. ValueError for a run that is not one."""
        self._core.restore(slot, dump.runs, dump.copies)

    def plain_batch(self, payload: bytes) -> PlainBatch | None:
        """A message read without an object per page; None when it is not plain.

        What engine/wire.py makes of a plain payload is the same, event by event.
        """
        batch: PlainBatch | None = self._module.plain_batch(payload)
        return batch

    def apply(self, slot: int, batch: PlainBatch, at: int, delta: Delta) -> int:
        """Apply a batch's events from `at` on, up to one that needs more than the tree; answers its number."""
        return self._core.apply(slot, batch, at, delta)

    def store_plain(self, slot: int, batch: PlainBatch, at: int, filing: Filing, delta: Delta) -> None:
        """Apply (and record) the store that is event `at` of a batch, as `store`."""
        self._core.store_plain(slot, batch, at, filing.namespace, filing.label, delta)


AnyRadixIndex = RadixIndex | NativeRadixIndex


def radix_index(page_size: int, unit_bytes: int, core: native.Core | None = None) -> AnyRadixIndex:
    """An empty index, in the core that serves unless another is given."""
    module = (core or native.CORE).module
    return RadixIndex(page_size, unit_bytes) if module is None else NativeRadixIndex(module, page_size, unit_bytes)
