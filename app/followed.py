"""What the state writer knows of one worker: the run of states it is in, and what of it is stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from index.block_hash import HashIdentity
from index.worker import Trust, Worker
from store.state import MAX_NUMBER, Entry, Lineage

AGAIN_S, AGAIN_MAX_S = 0.2, 5.0
"""Between two offers of a snapshot that was not taken."""


class Saved(NamedTuple):
    """A batch that was applied: its number, the engine's time in ms (0: unknown), the trust after it, its digest."""

    seq: int
    ts_ms: int
    trust: Trust
    digest: bytes | None


@dataclass(slots=True)
class Followed:
    """One worker. `ids_ms` never goes back within a lineage, so that the store takes every entry.

    `clean`: entries join what is stored; else a snapshot is due. `last` is the entry of batch `seq`, None where only a
    snapshot tells it. `dead`: lineage and number of what was stored, and proved to be of another engine process.
    """

    fingerprint: str | None = None
    identity: HashIdentity | None = None
    shared: bool = False
    lineage: Lineage | None = None
    seq: int = -1
    ids_ms: int = 0
    trust: Trust = Trust.NONE
    digest: bytes | None = None
    clean: bool = False
    last: Entry | None = None
    stored_fingerprint: str | None = None
    since_snapshot: int = 0
    due: int = 0
    dead: tuple[Lineage, int] | None = None
    stuck: tuple[Lineage, int] | None = None
    """Lineage and number of what was stored, from where nobody comes to what is held: batches between are lost."""
    stuck_since: float = 0.0
    refusals: int = 0
    offer_from: float = 0.0
    adopt_from: float = 0.0

    def begin(self) -> None:
        """What follows is another lineage, and nothing of it was applied yet."""
        self.lineage, self.clean, self.ids_ms, self.last = None, False, 0, None
        self.identity, self.shared, self.fingerprint = None, False, None
        self.refusals, self.offer_from = 0, 0.0

    def take(self, saved: Saved) -> Lineage:
        """A batch was applied; its lineage."""
        self.ids_ms = max(self.ids_ms, saved.ts_ms)
        self.seq, self.trust, self.digest = saved.seq, saved.trust, saved.digest
        if self.lineage is None:
            self.lineage = Lineage(saved.seq, self.ids_ms or _stamp(saved.digest))
            self.clean = False
        return self.lineage

    def not_taken(self, now: float) -> None:
        """An offer failed, or something better is stored: not again at once, and later each time."""
        self.clean = False
        self.offer_from = now + min(AGAIN_S * 2**self.refusals, AGAIN_MAX_S)
        self.refusals = min(self.refusals + 1, 10)

    def taken(self) -> None:
        """What is stored is as good as what is held."""
        self.refusals, self.dead = 0, None

    def probe(self, worker: Worker) -> Entry | None:
        """An entry that the store has, if what is stored is still there; writing it again changes nothing then."""
        if not self.clean or self.lineage is None:
            return None
        return self.last or Entry(worker, self.lineage, self.lineage.origin_seq, self.ids_ms, b"")

    def offers(self, now: float) -> bool:
        """Whether a snapshot is due."""
        return not self.clean and self.lineage is not None and now >= self.offer_from


def _stamp(digest: bytes | None) -> int:
    """In place of a time that the first batch does not tell: different processes must not share a lineage."""
    return int.from_bytes(digest or b"", "big") & MAX_NUMBER
