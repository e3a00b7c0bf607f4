"""What the radix index knows of one worker beside the tree: its page counts, odd handles, copies, parked events."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from index.event import EngineHash
from index.parked_runs import ParkedRuns


def handles_of(hashes: list[EngineHash]) -> array[int]:
    """Engine hashes as signed 64-bit handles; what is no int64 (unsigned, bytes, longer) is folded to one."""
    try:
        return array("q", hashes)  # type: ignore[arg-type]
    except (TypeError, OverflowError):
        return array("q", map(handle_of, hashes))


def handle_of(engine_hash: EngineHash) -> int:
    """One engine hash as a handle: an int64 is itself, an unsigned one its two's complement, the rest is digested."""
    if isinstance(engine_hash, int):
        if -(1 << 63) <= engine_hash < 1 << 63:
            return engine_hash
        if 0 < engine_hash < 1 << 64:
            return engine_hash - (1 << 64)
        engine_hash = str(engine_hash).encode()
    return int.from_bytes(hashlib.blake2b(engine_hash, digest_size=8).digest(), "big", signed=True)


@dataclass(slots=True)
class Holder:
    """One worker's part. A page is named by its handle in the page table, which no split or join changes.

    `pages` are the held pages per medium. `copies` are GPU stores of a page beyond the first. `meaning` maps handles
    which mean another page to this worker than to the table, `named` is its inverse. `foreign`: this worker's handles
    contradicted the table once, so from then on only those of pages that it holds are believed.
    """

    pages: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    copies: dict[int, int] = field(default_factory=dict)
    meaning: dict[int, int] = field(default_factory=dict)
    named: dict[int, list[int]] = field(default_factory=dict)
    foreign: bool = False
    parked: ParkedRuns = field(default_factory=ParkedRuns)

    def bind(self, handle: int, page: int) -> int | None:
        """Let `handle` mean `page` from now on; answers the page it was bound to, when that was another."""
        before = self.meaning.pop(handle, None)
        if before is not None:
            names = self.named[before]
            names.remove(handle)
            if not names:
                del self.named[before]
        if handle != page:
            self.meaning[handle] = page
            self.named.setdefault(page, []).append(handle)
        return None if before == page else before

    def copy(self, pages: Iterable[int]) -> None:
        """Count one more GPU store of pages that are held there."""
        for page in pages:
            self.copies[page] = self.copies.get(page, 0) + 1

    def drop_copies(self, pages: Iterable[int]) -> int:
        """Count one GPU store less of the leading pages that have more than one; answers how many these are."""
        dropped = 0
        for page in pages:
            copies = self.copies.pop(page, 0)
            if not copies:
                break
            if copies > 1:
                self.copies[page] = copies - 1
            dropped += 1
        return dropped

    def single(self, pages: Iterable[int]) -> int:
        """How many leading pages have one GPU store only."""
        count = 0
        for page in pages:
            if page in self.copies:
                break
            count += 1
        return count

    def unbind(self, pages: Iterable[int]) -> None:
        """Forget the odd handles of pages that the worker holds no more."""
        if self.named:
            for page in pages:
                for handle in self.named.pop(page, ()):
                    del self.meaning[handle]

    @property
    def size_bytes(self) -> int:
        """Memory of the rare tables, estimated."""
        return len(self.copies) * 110 + len(self.meaning) * 300 + self.parked.size_bytes
