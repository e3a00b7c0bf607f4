"""How the cost of one-hash removals grows with a run's length, both cores: `python -m benchmarks.radix_removals`.

A run of pages is removed one hash at a time, first to last, last to first as engines evict, and every other page first;
from a worker that holds it alone, or beside another one. Prints CPU microseconds per page for runs of three lengths,
each four times the one before, and the ratio of the last to the first: about 1 is linear, 16 would be quadratic.
"""

from __future__ import annotations

import time
from array import array

from benchmarks.radix_memory import cores
from index.delta import Delta
from index.event import BlockRemoved, BlockStored
from index.native import Core
from index.radix_native import radix_index

LENGTHS = (2_000, 8_000, 32_000)
ORDERS = ("forward", "backward", "odd pages first")
ROUNDS = 3


def main() -> None:
    """Print one line per core, page size, order and sharing."""
    print(f"CPU us per page for {', '.join(f'{count:,}' for count in LENGTHS)} pages; growth")
    for core in cores():
        for page_size in (1, 16):
            for order in ORDERS:
                for shared in (False, True):
                    took = [min(us_per_page(core, n, page_size, order, shared) for _ in range(ROUNDS)) for n in LENGTHS]
                    cells = "  ".join(f"{us:7.2f}" for us in took)
                    label = f"{core.name}, page size {page_size}, {order}, {'shared' if shared else 'alone'}"
                    print(f"{label:52}{cells}  x{took[-1] / took[0]:.2f}")


def us_per_page(core: Core, count: int, page_size: int, order: str, shared: bool) -> float:
    """CPU time per removed page."""
    index, hashes = radix_index(page_size, 4, core), list(range(1, count + 1))
    tokens = array("I", range(count * page_size)).tobytes()
    for slot in range(1 + shared):
        index.add(slot)
        index.store(slot, BlockStored([*hashes], None, tokens, page_size), "", Delta())
    ordered = {"forward": hashes, "backward": hashes[::-1]}.get(order, hashes[1::2] + hashes[::2])
    removals, delta = [BlockRemoved([one]) for one in ordered], Delta()
    began = time.process_time()
    for removal in removals:
        index.remove(0, removal, delta)
    took = time.process_time() - began
    assert delta.removed == count
    return took / count * 1e6


if __name__ == "__main__":
    main()
