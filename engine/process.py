"""Which process of an engine is on the line: its fingerprint, and the batches that wait while that is in doubt."""

from __future__ import annotations

from engine.stream import ListenerLimits


class Process:
    """The known fingerprint, at most one inquiry for it, and what waits for its verdict, bounded in time and size."""

    def __init__(self, limits: ListenerLimits, known: str | None) -> None:
        self._limits = limits
        self._inquiries = 0
        self._gap_inquiry_from = 0.0
        self._doubt_until: float | None = None
        self._aside: list[tuple[int, bytes]] = []
        self._aside_bytes = 0
        self.known = known
        self.inquiry: int | None = None

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
        self._doubt_until = now + self._limits.fingerprint_s

    @property
    def doubt_until(self) -> float | None:
        """When a verdict that has not come counts as unknown; None without doubt."""
        return self._doubt_until

    def set_aside(self, seq: int, payload: bytes) -> bool:
        """Keep a batch until the verdict. True: no more can be kept."""
        self._aside.append((seq, payload))
        self._aside_bytes += len(payload)
        return len(self._aside) >= self._limits.held_batches or self._aside_bytes >= self._limits.held_bytes

    def end_doubt(self) -> list[tuple[int, bytes]]:
        """The batches set aside, in order of arrival."""
        aside, self._aside, self._aside_bytes = self._aside, [], 0
        self._doubt_until = None
        return aside

    def disconnect(self) -> None:
        """What was asked and set aside belongs to a connection that is gone."""
        self.inquiry = None
        self.end_doubt()
