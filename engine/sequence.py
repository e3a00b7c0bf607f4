"""One worker's event stream put in order: every batch once, restarts seen, holes filled or owned up to. Sans-IO.

The numbers are those of vLLM's and SGLang's ZmqEventPublisher: from 0 per process, one per batch, 8 bytes; a restarted
process starts at 0 again and nothing on the wire names it. A replay serves the last `buffer_steps` batches; its end
marker comes even when batches before it were dropped.

Fed with what sockets and clock say, a Sequence offers `take()` (what the consumer should know) and, as wishes for the
shell, `ask` (the replay request that should be under way), `inquiry` (a fingerprint wanted) and `deadline()`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Literal

from engine.asking import Ask, Asking
from engine.backlog import Held
from engine.engine_time import engine_time
from engine.order import Order
from engine.process import Process
from engine.stream import Current, Gap, Link, ListenerLimits, Position, Resumed, Signal, Stale
from index.worker import Trust


class Sequence:
    """The state of one stream. Never emits a batch twice or out of order; a loss that cannot be made good is a `Clear`.

    `replay` tells whether the publisher can be asked at all. With `resume`, the consumer already holds a worker's
    blocks up to a position. They stay, as after a lost connection, if the engine's process proves to be the same: by an
    equal fingerprint, or, when that is unknown, by the last applied batch, replayed under its number.
    """

    def __init__(
        self,
        limits: ListenerLimits,
        replay: bool,
        resume: Position | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._limits = limits
        self._replay = replay
        self._order = Order(limits, resume)
        self._resuming = resume is not None  # the consumer waits to hear whether what it holds may stay
        self._position = resume
        self._asking = Asking(limits, jitter)
        self._resynced_at: float | None = None
        self._resync_useless = False
        self.resync_requests: Counter[str] = Counter()
        self._current: bool | None = None
        """Whether `Current` was told, and if it was sure; None: not since what it says was last in question."""
        self._link: Literal["new", "up", "down", "doubt"] = "new" if resume is None else "down"
        self._process = Process(limits, None if resume is None else resume.fingerprint)

    # What the shell and the consumer read

    def take(self) -> list[Signal]:
        """Everything to tell the consumer since the last call, in order."""
        order = self._order
        signals, order.signals = order.signals, []
        self._position = self._reached()
        return signals

    @property
    def ask(self) -> Ask | None:
        """The replay request that should be under way; another `id` means the former one is abandoned."""
        return self._asking.current

    @property
    def inquiry(self) -> int | None:
        """The fingerprint call that should be under way: `verdict` takes its answer."""
        return self._process.inquiry

    def deadline(self) -> float | None:
        """When `tick` is next needed, if nothing else happens."""
        times = (self._process.verdict_until, self._order.decide_at, self._asking.deadline())
        return min((time for time in times if time is not None), default=None)

    @property
    def position(self) -> Position | None:
        """Where a later Sequence could resume, once everything taken was applied; None: nothing of this process was.

        It moves with `take` only. Reading it costs nothing.
        """
        return self._position

    # What the sockets and the clock say

    def live(self, seq: int, payload: bytes, now: float) -> None:
        """A message of the event socket."""
        if self._link in ("down", "doubt"):
            if self._process.set_aside(seq, payload):
                self._too_much_aside(now)
            return
        self._asking.live(now)
        order, ts = self._order, engine_time(payload)
        if order.is_next(seq) and not order.clock.jumps_back(ts):
            order.next_live = seq + 1
            order.clock.note(seq, ts)
            self._caught_up(sure=True)
            order.apply(seq, payload, replayed=False)
            return
        if seq < order.floor():
            if order.is_known(seq, payload):
                return
            self._restart()
        elif order.clock.jumps_back(ts):
            self._restart()
        if order.next_live is not None and seq > order.floor():
            order.signals.append(Gap(seq - order.floor()))
            self._current = None
            self._process.suspect(now)
        order.next_live = seq + 1
        order.clock.note(seq, ts)
        self._take_in(seq, payload, now)

    def live_run(self, messages: list[list[bytes]], at: int, topic: bytes, now: float) -> int:
        """Take in messages of the event socket, [topic, seq, payload] each, from the place `at` on, as `live` would.

        How many: as long as nothing about them is unusual; often none.
        """
        if self._link in ("down", "doubt"):
            return 0
        before = len(self._order.signals)
        count = self._order.apply_run(messages, at, topic)
        if count:
            self._asking.live(now)
            self._caught_up(sure=True, before=before)
        return count

    def replayed(self, ask_id: int, seq: int, payload: bytes, now: float) -> None:
        """A batch of the answer to a replay request."""
        if self._asking.current is None or self._asking.current.id != ask_id:
            return
        order = self._order
        if seq >= order.expected or self._link == "doubt":  # an answer of old batches only must end some time
            self._asking.answered(now)
        if self._link == "doubt":
            self._end_doubt(same=seq == order.expected - 1 and order.applied.has(seq, payload), now=now)
        elif seq < order.expected:
            return
        elif seq == order.expected:
            self._asking.progressed = True
            order.apply(seq, payload, replayed=True)
            order.drain()
        elif order.backlog.put(seq, Held(payload, replayed=True)) and order.fresh:
            self._resync_useless = True  # 0 has left the publisher's buffer: the answer begins with what is there
            self._asking.progressed = True
            self._give_up_hole()

    def replay_end(self, ask_id: int, now: float) -> None:
        """The end marker of an answer: no proof that the answer was complete."""
        if self._asking.current is not None and self._asking.current.id == ask_id:
            self._answer_over(now, marker=True)

    def link_up(self, now: float) -> None:
        """The event socket's handshake succeeded."""
        if self._link in ("up", "doubt"):
            return
        self._order.signals.append(Link(True))
        self._current = None
        if self._link == "new":
            self._link = "up"
            self._process.inquire()
            self._go_on(now)
        else:
            self._link = "doubt"
            self._process.doubt(now)
            if self._process.known is None and not self._ask_for_proof(now):
                self._end_doubt(same=False, now=now)  # no answer could tell

    def link_down(self) -> None:
        """The event socket was disconnected. What it still held must have been fed before."""
        if self._link in ("up", "doubt"):
            self._order.signals.append(Link(False))
            self._link = "down"
        self._order.decide_at = None
        self._current = None
        self._process.disconnect()
        self._asking.stop()

    def verdict(self, inquiry: int, fingerprint: str | None, now: float) -> None:
        """The answer to an inquiry: what identifies the engine's process, or None when that cannot be told."""
        process = self._process
        if inquiry != process.inquiry:
            return
        process.inquiry = None
        if self._link == "doubt":
            process.claim(fingerprint)
            proving = self._asking.waiting or (fingerprint is None and self._ask_for_proof(now))
            if not proving:
                self._end_doubt(process.is_same, now)
        elif fingerprint is not None and process.known is None:
            process.known = fingerprint
        elif fingerprint is not None and fingerprint != process.known:
            self._other_process(fingerprint, now)

    def told_process(self, fingerprint: str, now: float) -> None:
        """What identifies the process by now, asked for by others. No inquiry of our own is needed to believe it."""
        process = self._process
        if self._link == "up" and process.known is not None and process.known != fingerprint:
            self._other_process(fingerprint, now)

    def tick(self, now: float) -> None:
        """Time has passed."""
        if self._process.verdict_until is not None and now >= self._process.verdict_until:
            assert self._process.inquiry is not None
            self.verdict(self._process.inquiry, None, now)
        if self._asking.expired(now):
            self._answer_over(now, marker=False)
        if self._asking.due(now):
            self._send_ask(now)
            self._process.inquire_if_unknown()
        if self._order.decide_at is not None and now >= self._order.decide_at:
            self._order.decide(Trust.PARTIAL)

    def resync(self, reason: str, now: float, *, known_too: bool = False) -> bool:
        """Forget and replay from 0. False (and nothing happens): it was done lately, or it would show nothing new.

        With `known_too` batches that were seen before are worth it: they mean something else by now.
        """
        self.resync_requests[reason] += 1
        lately = self._resynced_at is not None and now - self._resynced_at < self._limits.resync_s
        useless = self._resync_useless and not known_too
        if not self._replay or self._link != "up" or self._order.fresh or useless or lately:
            return False
        self._begin(reason, same_process=True)
        self._resync_useless = True
        self._resynced_at = now
        self._send_ask(now)
        return True

    def _reached(self) -> Position | None:
        order = self._order
        if order.fresh:
            return None
        return Position(order.expected, self._process.known, order.applied.last, order.trust)

    # Holes

    def _take_in(self, seq: int, payload: bytes, now: float) -> None:
        order = self._order
        if seq != order.expected:
            while not order.backlog.put(seq, Held(payload, replayed=False)):
                self._give_up_hole()
        if seq == order.expected:
            order.apply(seq, payload, replayed=False)
        order.drain()
        self._mind_hole(now)
        if seq < order.expected and not order.backlog:
            self._caught_up(sure=True)

    def _caught_up(self, sure: bool, before: int | None = None) -> None:
        """All that is known to be published was applied; told at the end, or before a place among the signals."""
        if self._current is None or (sure and not self._current):
            self._current = sure
            signals = self._order.signals
            signals.insert(len(signals) if before is None else before, Current(sure))

    def _give_up_hole(self) -> None:
        if self._order.give_up_hole():
            self._resync_useless = False
        self._asking.fruitless = 0

    def _mind_hole(self, now: float) -> None:
        backlog = self._order.backlog
        if not self._replay:
            while backlog:
                self._give_up_hole()
        elif backlog and (not self._asking.waiting or self._asking.outdated(self._order.expected)):
            self._send_ask(now)

    # Asking

    def _send_ask(self, now: float) -> None:
        order = self._order
        self._asking.send(order.expected, now, hunting=order.fresh or len(order.backlog) > 0)
        order.limit_old_claims(now)

    def _answer_over(self, now: float, marker: bool) -> None:
        order = self._order
        self._asking.finish()
        if self._link == "doubt":
            self._end_doubt(same=False, now=now)
            self._asking.fruitless += not marker  # a silent publisher is not given more time for being in doubt
            return
        if order.backlog:
            if self._asking.exhausted:
                self._give_up_hole()
            if order.backlog:
                self._asking.again(now)
                return
        elif not marker and (self._asking.progressed or (order.fresh and not self._asking.exhausted)):
            self._asking.again(now)
            return
        if order.fresh and not order.decided and (marker or order.reason != "start"):
            order.decide(Trust.EXACT if marker else Trust.PARTIAL)
        self._caught_up(sure=marker and self._asking.settled)
        self._asking.rest(now)

    def _go_on(self, now: float) -> None:
        """The link is up and the process known as far as it can be: close the hole since the last batch."""
        if self._replay:
            self._asking.settle(now)
            if not self._asking.waiting:
                self._send_ask(now)
        else:
            self._order.limit_old_claims(now)
            self._caught_up(sure=self._order.fresh)  # with nothing held nothing can be missing

    # Processes

    def _other_process(self, fingerprint: str, now: float) -> None:
        self._process.known = fingerprint
        self._begin("restart")
        self._go_on(now)

    def _begin(self, reason: str, *, same_process: bool = False) -> None:
        self._order.begin(reason, same_process=same_process)
        self._order.signals.append(Stale())
        self._current = None
        self._resync_useless = False
        self._asking.forget()

    def _restart(self) -> None:
        self._begin("restart")
        self._process.known = None
        self._process.inquire()

    def _ask_for_proof(self, now: float) -> bool:
        """Look for the last applied batch: its process alone has it. False: there is nobody to ask, or nothing to show.

        In doubt only this is asked for, and the first thing that is answered, or time, ends the doubt.
        """
        if not self._replay or self._order.fresh or self._order.applied.last is None:
            return False
        self._process.verdict_until = None
        self._asking.send(self._order.expected - 1, now, hunting=False)
        return True

    def _end_doubt(self, same: bool, now: float) -> None:
        self._link = "up"
        reason = "restart" if self._process.is_other else "reconnect"
        aside = self._process.settle(same)
        if not same:
            self._begin(reason)
        elif self._resuming:
            self._order.signals.append(Resumed())
        self._resuming = False
        for seq, payload in aside:
            self.live(seq, payload, now)
        self._go_on(now)

    def _too_much_aside(self, now: float) -> None:
        if self._link == "doubt":
            self._end_doubt(same=False, now=now)
        else:
            self._process.disconnect()  # what is dropped shows as a gap
