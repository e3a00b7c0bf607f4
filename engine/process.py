"""Which process of an engine is on the line: its fingerprint, and the batches that wait while that is in doubt.

What is known belongs to the process whose batches were applied. What is told while in doubt is only claimed: it may be
of another process, and nothing may be compared with it until the doubt is settled.
"""

from __future__ import annotations

from engine.stream import ListenerLimits


class Process:
    """The known fingerprint, at most one inquiry for it, and what waits for its verdict, bounded in time and size."""

    def __init__(self, limits: ListenerLimits, known: str | None) -> None:
        self._limits = limits
        self._inquiries = 0
        self._gap_inquiry_from = 0.0
        self._aside: list[tuple[int, bytes]] = []
        self._aside_bytes = 0
        self._claimed: str | None = None
        self.known = known
        self.inquiry: int | None = None
        self.verdict_until: float | None = None
        """In doubt: when a verdict that has not come counts as unknown. None when no verdict is waited for."""

    def inquire(self) -> None:
        """Ask for the fingerprint; an earlier inquiry no longer counts."""
        self._inquiries += 1
        self.inquiry = self._inquiries

    def inquire_if_unknown(self) -> None:
        """An engine whose HTTP side was not up yet may tell later."""
        if self.known is None and self.inquiry is None:
            self.inquire()

    def suspect(self, now: float) -> None:
        """Behind a proxy a gap may hide a restart that no disconnect has shown: look who is there, not too often."""
        if self.known is not None and self.inquiry is None and now >= self._gap_inquiry_from:
            self._gap_inquiry_from = now + self._limits.inquiry_s
            self.inquire()

    def doubt(self, now: float) -> None:
        """A new connection: until the verdict nobody knows whose batches come."""
        self.inquire()
        self.verdict_until = now + self._limits.fingerprint_s

    def claim(self, fingerprint: str | None) -> None:
        """Somebody answered while in doubt."""
        self._claimed = fingerprint

    @property
    def is_same(self) -> bool:
        """Whether the claim alone proves that the process is the known one."""
        return self._claimed is not None and self._claimed == self.known

    @property
    def is_other(self) -> bool:
        """Whether the claim alone proves that it is another one."""
        return self._claimed is not None and self.known is not None and self._claimed != self.known

    def settle(self, same: bool) -> list[tuple[int, bytes]]:
        """The doubt is over. The batches set aside, in order of arrival."""
        if self._claimed is not None or not same:
            self.known = self._claimed
        return self._take_aside()

    def set_aside(self, seq: int, payload: bytes) -> bool:
        """Keep a batch until the verdict. True: no more can be kept."""
        self._aside.append((seq, payload))
        self._aside_bytes += len(payload)
        return len(self._aside) >= self._limits.held_batches or self._aside_bytes >= self._limits.held_bytes

    def disconnect(self) -> None:
        """What was asked, claimed and set aside belongs to a connection that is gone."""
        self.inquiry = None
        self._take_aside()

    def _take_aside(self) -> list[tuple[int, bytes]]:
        aside, self._aside, self._aside_bytes = self._aside, [], 0
        self.verdict_until, self._claimed = None, None
        return aside
