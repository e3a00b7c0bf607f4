"""What of a stream waits for its turn, and what has had it: both bounded."""

from __future__ import annotations

import heapq
from array import array
from typing import NamedTuple

from xxhash import xxh3_64_intdigest


class Held(NamedTuple):
    """A batch ahead of its turn."""

    payload: bytes
    replayed: bool


class Backlog:
    """Batches held back behind a hole, by sequence number."""

    def __init__(self, max_batches: int, max_bytes: int) -> None:
        self._max_batches = max_batches
        self._max_bytes = max_bytes
        self._held: dict[int, Held] = {}
        self._order: list[int] = []
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def put(self, seq: int, held: Held) -> bool:
        """Hold a batch back; the first one of a number stays. False: full, and not held. A single one always fits."""
        if seq in self._held:
            return True
        full = len(self._held) >= self._max_batches or self._bytes + len(held.payload) > self._max_bytes
        if full and self._held:
            return False
        self._held[seq] = held
        self._bytes += len(held.payload)
        heapq.heappush(self._order, seq)
        return True

    def get(self, seq: int) -> Held | None:
        """The batch held under a number, left where it is."""
        return self._held.get(seq)

    def pop(self, seq: int) -> Held | None:
        """Take the batch held under a number."""
        held = self._held.pop(seq, None)
        if held is not None:
            self._bytes -= len(held.payload)
        if not self._held:
            self._order.clear()
        return held

    def first(self) -> int | None:
        """The lowest number held."""
        while self._order and self._order[0] not in self._held:
            heapq.heappop(self._order)
        return self._order[0] if self._order else None

    def clear(self) -> None:
        """Let go of everything."""
        self._held.clear()
        self._order.clear()
        self._bytes = 0


class Applied:
    """Digests of the newest applied batches: enough to know a batch when it comes again."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._next = 0
        self._digests = array("Q")

    def add(self, seq: int, payload: bytes) -> None:
        """Note a batch as applied. Numbers that were skipped are known to nobody."""
        self._skip_to(seq)
        self._digests.append(xxh3_64_intdigest(payload))
        self._next = seq + 1
        self._trim()

    def add_run(self, first_seq: int, digests: bytes) -> None:
        """Note batches with consecutive numbers as applied, by their xxh3_64 (8 bytes each, native)."""
        self._skip_to(first_seq)
        added, taken = array("Q", digests), 0
        self._next = first_seq + len(added)
        while taken < len(added):
            room = max(1, 2 * self._limit + 1 - len(self._digests))  # until the next trim
            self._digests.extend(added[taken : taken + room])
            taken += room
            self._trim()

    def _skip_to(self, seq: int) -> None:
        skipped = seq - self._next
        if skipped < 0 or skipped > self._limit:
            del self._digests[:]
        else:
            self._digests.extend([0] * skipped)

    def _trim(self) -> None:
        if len(self._digests) > 2 * self._limit:
            del self._digests[: len(self._digests) - self._limit]

    def resume(self, next_seq: int, digest: bytes | None) -> None:
        """Go on after a batch that somebody else applied, of which only the digest is known, if anything."""
        self.clear()
        if next_seq > 0 and digest is not None and len(digest) == 8:
            self._next = next_seq
            self._digests.append(int.from_bytes(digest, "big"))

    @property
    def last(self) -> bytes | None:
        """The digest of the newest one, None if there is none."""
        return self._digests[-1].to_bytes(8, "big") if self._digests else None

    def has(self, seq: int, payload: bytes) -> bool:
        """Whether this very batch was applied, as far back as is remembered."""
        place = len(self._digests) - (self._next - seq)
        return 0 <= place < len(self._digests) and self._digests[place] == xxh3_64_intdigest(payload)

    def clear(self) -> None:
        """Forget everything: another process numbers its batches anew."""
        del self._digests[:]
        self._next = 0
