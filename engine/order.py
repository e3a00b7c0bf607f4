"""The batches of one engine process in their order, and what the consumer is told of them. Sans-IO.

Every batch once; what comes ahead of its turn is held back; a loss is owned up to with a `Clear`. Which process it is,
and what is asked for, `engine.sequence` decides.
"""

from __future__ import annotations

from itertools import repeat

from engine.backlog import Applied, Backlog
from engine.engine_time import EngineClock, engine_time
from engine.live_run import leading_run
from engine.stream import Batch, Clear, ListenerLimits, Position, Signal
from index.worker import Trust


class Order:
    """What was applied of a process, what waits behind a hole, and the signals that nobody has taken yet.

    `expected` is the number of the next batch, `next_live` that of the next live one (None before any). `fresh`: none
    was applied since the last beginning. `decided`: the `Clear` of that beginning was told; `decide_at`: when it is
    told without an answer.
    """

    def __init__(self, limits: ListenerLimits, resume: Position | None) -> None:
        self._limits = limits
        self.signals: list[Signal] = []
        self.reason = "start"
        self.fresh = resume is None
        self.decided = False
        self.decide_at: float | None = None
        self.trust = Trust.PARTIAL if resume is None else resume.trust
        self.expected = 0 if resume is None else resume.next_seq
        self.next_live: int | None = None
        self.clock = EngineClock(limits.clock_step_s)
        self.backlog = Backlog(limits.held_batches, limits.held_bytes)
        self.applied = Applied(limits.remembered_batches)
        if resume is not None:
            self.applied.resume(resume.next_seq, resume.digest)

    def is_next(self, seq: int) -> bool:
        """Whether nothing is missing before this number and nothing waits behind it: so it is nearly always."""
        return seq == self.next_live == self.expected and not self.fresh and not self.backlog

    def floor(self) -> int:
        """The lowest number that a live batch of this process can still have."""
        return max(self.expected, self.next_live or 0)

    def is_known(self, seq: int, payload: bytes) -> bool:
        """Whether this very batch was applied or is held back."""
        held = self.backlog.get(seq)
        return self.applied.has(seq, payload) or (held is not None and held.payload == payload)

    def apply(self, seq: int, payload: bytes, replayed: bool) -> None:
        """The batch `expected`, or the first one since a beginning."""
        if self.fresh:
            self._open(seq)
        self.expected = seq + 1
        self.applied.add(seq, payload)
        if replayed:
            self.clock.note(seq, engine_time(payload))
        self.signals.append(Batch(seq, payload, replayed))

    def apply_run(self, messages: list[list[bytes]], at: int, topic: bytes) -> int:
        """Apply live messages from the place `at` on whose turn it plainly is, many at once; how many, often none."""
        if self.next_live != self.expected or self.fresh or self.backlog:
            return 0
        run = leading_run(messages, at, topic, self.expected, self.clock)
        if run is None:
            return 0
        first, count = self.expected, len(run.payloads)
        self.expected = self.next_live = first + count
        self.clock.note(first + count - 1, run.ts)
        self.applied.add_run(first, run.digests)
        rows = zip(range(first, first + count), run.payloads, repeat(False), strict=False)
        self.signals.extend(map(tuple.__new__, repeat(Batch), rows))  # as Batch(...), in half the time
        return count

    def drain(self) -> None:
        """Apply what was held back and has its turn now."""
        while (held := self.backlog.pop(self.expected)) is not None:
            self.apply(self.expected, held.payload, held.replayed)

    def give_up_hole(self) -> bool:
        """What is missing is gone for good: never over-claim, go on with the next batch there is.

        Whether that cost what had been applied.
        """
        first = self.backlog.first()
        assert first is not None
        lost = not self.fresh
        if lost:
            self.trust = Trust.PARTIAL
            self.signals.append(Clear("gap", Trust.PARTIAL))
        self.expected = first
        self.drain()
        return lost

    def begin(self, reason: str, *, same_process: bool = False) -> None:
        """Start over at 0, as with a process never met. The Clear comes with what is found."""
        if self.decided or not self.fresh or self.reason != "start":
            self.reason = reason
        self.fresh, self.decided, self.decide_at = True, False, None
        self.expected = 0
        if not same_process:
            self.next_live = None
            self.clock = EngineClock(self._limits.clock_step_s)
        self.backlog.clear()
        self.applied.clear()

    def limit_old_claims(self, now: float) -> None:
        """What a former process held may be claimed no longer than it takes an engine to answer."""
        if self.fresh and not self.decided and self.reason != "start" and self.decide_at is None:
            self.decide_at = now + self._limits.settle_s

    def decide(self, trust: Trust) -> None:
        """Tell the Clear of the last beginning."""
        self.decided = True
        self.decide_at = None
        self.trust = trust
        self.signals.append(Clear(self.reason, trust))

    def _open(self, first_seq: int) -> None:
        """The first batch since a beginning says what is known of the process."""
        trust = Trust.EXACT if first_seq == 0 else Trust.PARTIAL
        if not self.decided:
            self.decide(trust)
        elif trust is not self.trust:  # nothing is held yet, only the trust was guessed too low or too high
            self.trust = trust
            self.signals.append(Clear("start" if trust is Trust.EXACT else "gap", trust))
        self.fresh = False
