from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sequence import Sequence
from engine.stream import Batch, Clear, ListenerLimits, Position, Resumed
from index.worker import Trust
from tests.engine.sequence_words import EXACT, tick_through


@dataclass
class World:
    """An engine whose processes come and go, a lossy network, and a consumer that checks what it is told.

    `tells`: whether the engine's fingerprint can be had at all.
    """

    replay: bool
    buffer_steps: int
    tells: bool = True
    now: float = 100.0
    process: int = 0
    connected: bool = True
    published: list[bytes] = field(default_factory=list)
    received: list[Batch] = field(default_factory=list)
    trust: Trust | None = None
    resuming: bool = False
    clears: list[str] = field(default_factory=list)
    answered_ask: int = 0
    answer: list[tuple[int, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.listen(None)

    def listen(self, resume: Position | None) -> None:
        self.sequence = Sequence(ListenerLimits(held_batches=50), self.replay, resume, jitter=lambda: 0.5)
        self.answered_ask, self.answer = 0, []
        if self.connected:
            self.sequence.link_up(self.now)

    def publish(self, delivered: bool) -> None:
        self.published.append(msgspec.msgpack.encode([self.now, [self.process, len(self.published)], 0]))
        if delivered and self.connected:
            self.deliver(len(self.published) - 1)

    def deliver(self, seq: int) -> None:
        self.sequence.live(seq, self.published[seq], self.now)

    def repeat(self, back: int) -> None:
        """Duplicates are of batches that were delivered."""
        known = [b.seq for b in self.received if not b.replayed and self.published[b.seq : b.seq + 1] == [b.payload]]
        if known and self.connected:
            self.deliver(known[-1 - back % len(known)])

    def restart(self, more: int) -> None:
        """A new process; where no disconnect shows it, its first batches do."""
        self.process += 1
        self.published = []
        self.answer = []  # the publisher that was sending it is no more
        for _ in range(1 + more):
            self.publish(delivered=True)

    def switch_link(self) -> None:
        self.connected = not self.connected
        if self.connected:
            self.sequence.link_up(self.now)
        else:
            self.sequence.link_down()

    def resume(self, away: list[bool], restart: bool) -> None:
        """The consumer goes and comes back, with what it had stored, to a publisher that went on or started over."""
        position = self.sequence.position
        self.resuming = position is not None
        if position is None:
            self.received, self.trust = [], None
        else:
            assert (position.next_seq, position.trust) == (self.received[-1].seq + 1, self.trust)
        connected, self.connected = self.connected, False
        if restart:
            self.restart(0)
        for _ in away:
            self.publish(delivered=False)
        self.connected = connected
        self.listen(position)

    def fingerprint(self, known: bool) -> None:
        if self.sequence.inquiry is not None and self.connected:
            told = str(self.process) if known and self.tells else None
            self.sequence.verdict(self.sequence.inquiry, told, self.now)

    def serve(self, lost: set[int]) -> None:
        """The publisher answers a request, once, with what it has now."""
        ask = self.sequence.ask
        if ask is None or ask.id == self.answered_ask:
            return
        self.answered_ask = ask.id
        oldest = max(ask.start, len(self.published) - self.buffer_steps)
        batches = [(seq, self.published[seq]) for seq in range(oldest, len(self.published))]
        self.answer = [batch for place, batch in enumerate(batches) if place not in lost]

    def arrive(self, count: int, marker: bool) -> None:
        """So many batches of the answer arrive, perhaps its end marker with the last."""
        arriving, self.answer = self.answer[:count], self.answer[count:]
        for seq, batch in arriving:
            self.sequence.replayed(self.answered_ask, seq, batch, self.now)
        if marker and not self.answer:
            self.sequence.replay_end(self.answered_ask, self.now)

    def pass_time(self, seconds: float) -> None:
        self.now = tick_through(self.sequence, self.now, seconds)

    def settle(self) -> None:
        """Everything works again, for long enough."""
        if not self.connected:
            self.switch_link()
        for _ in range(60):
            self.fingerprint(known=True)
            self.serve(set())
            self.arrive(10**9, marker=True)
            self.pass_time(1.0)
            self.check()

    def check(self) -> None:
        for signal in self.sequence.take():
            match signal:
                case Clear(reason, trust):
                    self.received, self.trust, self.resuming = [], trust, False
                    self.clears.append(reason)
                case Resumed():
                    assert self.resuming, "nothing was resumed"
                    self.resuming = False
                case Batch(seq):
                    assert self.trust is not None, "a batch before the first Clear"
                    assert not self.resuming, "a batch before the resumed consumer knows what may stay"
                    if self.received:
                        assert seq == self.received[-1].seq + 1
                        assert process_of(signal) == process_of(self.received[-1]), "blocks of two processes"
                    elif self.trust is EXACT:
                        assert seq == 0
                    self.received.append(signal)


def process_of(batch: Batch) -> int:
    process: int = msgspec.msgpack.decode(batch.payload)[1][0]
    return process


few = st.integers(0, 4)
steps = st.one_of(
    st.tuples(st.just("publish"), st.tuples(st.lists(st.booleans(), min_size=1, max_size=8))),
    st.tuples(st.just("repeat"), st.tuples(st.integers(0, 10))),
    st.tuples(st.just("switch_link"), st.tuples()),
    st.tuples(st.just("restart"), st.tuples(few)),
    st.tuples(st.just("resume"), st.tuples(st.lists(st.booleans(), max_size=4), st.booleans())),
    st.tuples(st.just("fingerprint"), st.tuples(st.booleans())),
    st.tuples(st.just("serve"), st.tuples(st.sets(st.integers(0, 8), max_size=3))),
    st.tuples(st.just("arrive"), st.tuples(st.sampled_from([1, 2, 5, 100]), st.booleans())),
    st.tuples(st.just("pass_time"), st.tuples(st.sampled_from([0.01, 0.2, 1.0, 4.0, 8.0]))),
    st.tuples(st.just("resync"), st.tuples()),
)


def act(world: World, name: str, arguments: tuple[Any, ...]) -> None:
    if name == "publish":
        for delivered in arguments[0]:
            world.publish(delivered)
    elif name == "resync":
        world.sequence.resync("orphans", world.now)
    else:
        getattr(world, name)(*arguments)
    world.check()
    world.now += 0.01


@settings(max_examples=800, deadline=None)
@given(
    steps=st.lists(steps, max_size=30),
    replay=st.booleans(),
    buffer_steps=st.sampled_from([1, 4, 1000]),
    tells=st.booleans(),
)
def test_any_pattern_of_losses_ends_with_the_published_order_or_an_honest_clear(
    steps: list[tuple[str, tuple[Any, ...]]], replay: bool, buffer_steps: int, tells: bool
) -> None:
    world = World(replay, buffer_steps, tells)
    for name, arguments in steps:
        act(world, name, arguments)
    world.settle()
    got = [batch.payload for batch in world.received]
    if replay:
        assert got == world.published[len(world.published) - len(got) :]
        assert got or not world.published
    elif got:
        first = world.received[0].seq
        assert got == world.published[first : first + len(got)]


harmless = st.one_of(
    st.tuples(st.just("publish"), st.tuples(st.lists(st.booleans(), min_size=1, max_size=8))),
    st.tuples(st.just("switch_link"), st.tuples()),
    st.tuples(st.just("resume"), st.tuples(st.lists(st.booleans(), max_size=4), st.just(False))),
    st.tuples(st.just("pass_time"), st.tuples(st.sampled_from([0.01, 0.2, 1.0]))),
)


@settings(max_examples=300, deadline=None)
@given(steps=st.lists(harmless, max_size=30))
def test_without_any_fingerprint_a_process_that_answers_is_never_taken_for_another(
    steps: list[tuple[str, tuple[Any, ...]]],
) -> None:
    world = World(replay=True, buffer_steps=1000, tells=False)
    world.publish(delivered=True)
    world.settle()
    for name, arguments in steps:
        act(world, name, arguments)
        world.serve(set())
        world.arrive(10**9, marker=True)
        world.check()
    world.settle()
    assert world.clears == ["start"]
    assert [batch.payload for batch in world.received] == world.published
