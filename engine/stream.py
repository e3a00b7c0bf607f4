"""What a worker's event stream is and what its listener says about it: plain values, no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from index.worker import Trust


class Source(NamedTuple):
    """Where one worker publishes: an endpoint to subscribe to, one to ask for a replay (None: it has none), a topic.

    The topic is subscribed as a prefix; when it is not empty only messages whose whole topic equals it count.
    """

    events: str
    replay: str | None
    topic: str = ""


class Position(NamedTuple):
    """How far a worker was followed: what a later listener needs to go on without starting from 0.

    `fingerprint` identifies the engine's process; None: unknown. `digest` is the xxh3_64 (8 bytes, canonical) of the
    payload of batch `next_seq - 1`, which holds the time it was made; None: unknown. One of the two must be found
    again, or the consumer has to start over.
    """

    next_seq: int
    fingerprint: str | None
    digest: bytes | None
    trust: Trust


class Batch(NamedTuple):
    """One payload of the stream. Between two `Clear`s `seq` rises by exactly one."""

    seq: int
    payload: bytes
    replayed: bool


class Clear(NamedTuple):
    """Forget everything about the worker, then go on.

    `reason`: "start" (nothing is held: the first batch of a process), "restart" (a new process by its numbers),
    "reconnect" (perhaps a new process: the socket was lost), "gap" (batches are gone for good), or the reason given
    to `resync`. `trust` is EXACT when the next batch is the first of the engine's process.
    """

    reason: str
    trust: Trust


class Resumed(NamedTuple):
    """The process is the one that the resumed position was of: what is held stays, and `Position.trust` with it.

    Comes once, and only if `resume` was given: either this or a `Clear` precedes the first `Batch`.
    """


class Link(NamedTuple):
    """The event socket was connected (ZMTP handshake done) or lost."""

    up: bool


class Stale(NamedTuple):
    """What is held counts for nothing until `Current`: its process was replaced, or it is about to be filed anew."""


class Current(NamedTuple):
    """All that was published until now came: it is among the signals before this one.

    Not `sure`: as far as anybody answers; a part of it may be missing. Comes after every `Link(True)`, `Stale` and
    `Gap`, once more when it has become sure.
    """

    sure: bool


class Gap(NamedTuple):
    """`missing` sequence numbers were skipped by the live stream, whether or not a replay fills them afterwards."""

    missing: int


class BadFrame(NamedTuple):
    """A message that is not [topic, seq, payload]; it was dropped. `reason` is a short label, no text of the wire."""

    reason: str


Signal = Batch | Clear | Resumed | Link | Stale | Current | Gap | BadFrame


@dataclass(frozen=True)
class ListenerLimits:
    """Every wait, retry and buffer of a listener. Seconds, bytes, or counts."""

    first_answer_s: float = 1.5
    """Until the first batch of a replay answer; engines serve replays up to 0.1 s late, older ones later."""
    next_answer_s: float = 1.5
    """Between two batches of a replay answer, and before a missing end marker."""
    fruitless_asks: int = 2
    """Replay requests in a row that close nothing of a hole before it counts as gone for good."""
    backoff_s: float = 0.1
    """Before the next request after a fruitless one; doubles, with jitter up to the same again."""
    settle_s: float = 0.3
    """After a handshake, until what was published before the subscription took effect is asked for."""
    idle_s: float = 5.0
    """Without a live batch, until a lost tail is asked for; doubles while nothing comes."""
    idle_max_s: float = 30.0
    fingerprint_s: float = 3.0
    """Until an unanswered fingerprint counts as unknown; live batches of a new connection are held back so long, and
    `first_answer_s` longer when the last applied batch is looked for instead."""
    inquiry_s: float = 5.0
    """Between two fingerprint calls that gaps give rise to."""
    resync_s: float = 5.0
    """Between two replays from 0 that the consumer asked for."""
    clock_step_s: float = 1.0
    """A batch whose engine time lies further back than this comes from a new process."""
    held_batches: int = 100_000
    held_bytes: int = 256 * 1024 * 1024
    remembered_batches: int = 16_384
    """Applied batches whose digests are kept (8 bytes each) to tell a duplicate from a new process."""
    drain_batches: int = 1_000
    """Messages taken from one socket at a time, at most."""
