"""A real event publisher for tests: PUB and replay ROUTER in a thread of their own, as an engine has them, with faults.

    with Publisher(topic="kv-events") as publisher:
        ...  # connect a listener to publisher.events and publisher.replay
        publisher.wait_for_subscriber()
        publisher.publish(batch(1.0))

Sockets are bound when the constructor returns; `publish` returns when the message has been handed to the socket.
The PUB side is an XPUB, which tells subscriptions; to subscribers it is a PUB.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeVar

import msgspec
import zmq

from tests.support.ports import some_ports

T = TypeVar("T")
END_MARKER = b"\xff" * 8
Socket = zmq.Socket[bytes]


def batch(ts: float | None = None, events: Sequence[Any] = (), rank: int | None = 0) -> bytes:
    """A payload `[ts, events, rank]`; `ts` None: now."""
    return msgspec.msgpack.encode([time.time() if ts is None else ts, list(events), rank])


@dataclass
class Faults:
    """What goes wrong. May be changed at any time between two publisher calls.

    `drop_live`: numbers that only reach the buffer. `lose_in_replay`: number -> how many answers still lose it (None:
    all). `lose_end_markers`: how many answers still end without marker. `stop_after`: answers break off after so many
    batches, without marker. `silent`: requests are read and not answered. `answer_delay_s`: before each batch.
    """

    drop_live: set[int] = field(default_factory=set)
    lose_in_replay: dict[int, int | None] = field(default_factory=dict)
    lose_end_markers: int = 0
    stop_after: int | None = None
    silent: bool = False
    answer_delay_s: float = 0.0

    def loses(self, seq: int) -> bool:
        """Whether this answer loses a batch; counts it."""
        left = self.lose_in_replay.get(seq, 0)
        if left:
            self.lose_in_replay[seq] = left - 1
        return left is None or left > 0


class Publisher:
    """One rank's publisher. `form` is the replay framing: "current" with a topic frame, "old" without.

    `port`, `replay_port`: None takes a free one; a given one that is taken is waited for, `patience_s` long. The replay
    ROUTER keeps ZMQ's default high-water mark of 1000, as the engines' does: long answers lose batches by themselves.
    """

    def __init__(
        self,
        topic: str = "",
        replay: bool = True,
        buffer_steps: int = 10_000,
        form: Literal["current", "old"] = "current",
        host: str = "127.0.0.1",
        port: int | None = None,
        replay_port: int | None = None,
        patience_s: float = 5.0,
    ) -> None:
        self.topic = topic
        self.form = form
        self.faults = Faults()
        self.requests: list[int] = []
        """The start numbers of all replay requests received."""
        self.next_seq = 0
        self._host = host
        self._patience_s = patience_s
        self._ports = [port, replay_port]
        self._with_replay = replay
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer_steps)
        self._subscribers = 0
        self._changed = threading.Condition()
        self._context: zmq.Context[Socket] = zmq.Context()
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._bell, self._bell_end = self._context.socket(zmq.PUSH), self._context.socket(zmq.PULL)
        self._bell_end.bind("inproc://bell")
        self._bell.connect("inproc://bell")
        self._pub: Socket | None = None
        self._router: Socket | None = None
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self._thread.start()
        try:
            self._do(self._bind)
        except BaseException:
            self.close()
            raise

    @property
    def events(self) -> str:
        """The endpoint to subscribe to."""
        return f"tcp://{self._host}:{self._ports[0]}"

    @property
    def replay(self) -> str | None:
        """The endpoint to ask for replays, None without."""
        return f"tcp://{self._host}:{self._ports[1]}" if self._with_replay else None

    @property
    def port(self) -> int:
        """The port of `events`; rank r of an engine is expected at port + r."""
        port = self._ports[0]
        assert port is not None
        return port

    # Publishing

    def publish(self, payload: bytes) -> int:
        """Publish under the next number and return it."""
        return self._do(lambda: self._publish(payload))

    def publish_all(self, payloads: Iterable[bytes]) -> None:
        """Publish many without a thread switch each."""
        self._do(lambda: [self._publish(payload) for payload in payloads])

    def publish_at(self, seq: int, payload: bytes) -> None:
        """Publish under a given number; the next one follows it."""
        self.next_seq = seq
        self.publish(payload)

    def repeat(self, seq: int) -> None:
        """Send a buffered batch to the subscribers once more."""
        self._do(lambda: self._send(seq, dict(self._buffer)[seq]))

    def send_frames(self, *frames: bytes) -> None:
        """Send any message to the subscribers."""
        self._do(lambda: self._pub_socket().send_multipart(frames))

    def burn(self, count: int = 1) -> None:
        """Use up numbers without a batch, as an engine does when encoding fails."""
        self.next_seq += count

    # Life

    def restart(self, missed: Iterable[bytes] = ()) -> None:
        """A new process on the same ports: connections are lost, buffer empty, numbers from 0.

        `missed` is published before any subscriber can be back: it is in the buffer only.
        """
        self.stop()
        self.next_seq = 0
        self._buffer.clear()
        self.miss(missed)
        self.start()

    def miss(self, payloads: Iterable[bytes]) -> None:
        """While stopped: what is published before any subscriber can be back is in the buffer only."""
        for payload in payloads:
            self._buffer.append((self.next_seq, payload))
            self.next_seq += 1

    def start_over(self) -> None:
        """A new process behind a connection that is not lost (a proxy): buffer empty, numbers from 0."""
        self._do(self._buffer.clear)
        self.next_seq = 0

    def stop(self) -> None:
        """Close the sockets, keep numbers and buffer: with `start` a lost connection."""
        self._do(self._unbind)

    def start(self) -> None:
        """Bind the same ports again."""
        self._do(self._bind)

    def close(self) -> None:
        """End the thread and close everything. May be called twice."""
        if self._thread.is_alive():
            self._commands.put(None)
            self._bell.send(b"")
            self._thread.join(10)
        self._bell.close(0)
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Waiting

    def wait_for_subscriber(self, timeout_s: float = 5.0, count: int = 1) -> None:
        """Return once so many subscriptions are active since the last bind. In a coroutine: `asyncio.to_thread`."""
        self._wait(lambda: self._subscribers >= count, timeout_s, "no subscriber")

    def wait_for_requests(self, count: int, timeout_s: float = 5.0) -> None:
        """Return once so many replay requests have come in all. In a coroutine: `asyncio.to_thread`."""
        self._wait(lambda: len(self.requests) >= count, timeout_s, "no replay request")

    def _wait(self, ready: Callable[[], bool], timeout_s: float, what: str) -> None:
        with self._changed:
            if not self._changed.wait_for(ready, timeout_s):
                raise TimeoutError(f"{what} within {timeout_s} s at {self.events}")

    # In the thread

    def _do(self, work: Callable[[], T]) -> T:
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)

        self._commands.put(run)
        self._bell.send(b"")
        return done.result(60)

    def _run(self) -> None:
        while True:
            sockets = [s for s in (self._bell_end, self._pub, self._router) if s is not None]
            ready, _, _ = zmq.select(sockets, [], [], None)
            if self._pub in ready:
                self._note_subscription()
            if self._router in ready:
                self._answer()
            if self._bell_end in ready:
                self._bell_end.recv()
                command = self._commands.get()
                if command is None:
                    break
                command()
        self._unbind()
        self._bell_end.close(0)

    def _bind(self) -> None:
        self._subscribers = 0
        self._pub = self._open(zmq.XPUB)
        self._pub.set(zmq.SNDHWM, 100_000)
        self._pub.set(zmq.XPUB_VERBOSER, 1)
        self._ports[0] = self._bind_port(self._pub, self._ports[0])
        if self._with_replay:
            self._router = self._open(zmq.ROUTER)
            self._ports[1] = self._bind_port(self._router, self._ports[1])

    def _open(self, kind: int) -> Socket:
        socket: Socket = self._context.socket(kind)
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.IPV6, ":" in self._host)
        return socket

    def _bind_port(self, socket: Socket, port: int | None) -> int:
        if port is None:
            return bound_port(socket, self._host)
        give_up_at = time.monotonic() + self._patience_s
        while True:
            try:
                socket.bind(f"tcp://{self._host}:{port}")
            except zmq.ZMQError as error:  # the former socket of this port closes in the background
                if error.errno != zmq.EADDRINUSE or time.monotonic() > give_up_at:
                    raise
                time.sleep(0.01)
            else:
                return port

    def _unbind(self) -> None:
        for socket in (self._pub, self._router):
            if socket is not None:
                socket.close(0)
        self._pub = self._router = None

    def _pub_socket(self) -> Socket:
        assert self._pub is not None, "stopped"
        return self._pub

    def _publish(self, payload: bytes) -> int:
        seq = self.next_seq
        self.next_seq += 1
        self._buffer.append((seq, payload))
        if seq not in self.faults.drop_live:
            self._send(seq, payload)
        return seq

    def _send(self, seq: int, payload: bytes) -> None:
        self._pub_socket().send_multipart((self.topic.encode(), seq.to_bytes(8, "big"), payload))

    def _note_subscription(self) -> None:
        message = self._pub_socket().recv()
        with self._changed:
            self._subscribers += 1 if message[:1] == b"\x01" else -1
            self._changed.notify_all()

    def _answer(self) -> None:
        assert self._router is not None
        frames = self._router.recv_multipart()
        if len(frames) != 3:
            return  # as the engines: a request without the empty delimiter gets no answer
        client, start = frames[0], int.from_bytes(frames[2], "big")
        with self._changed:
            self.requests.append(start)
            self._changed.notify_all()
        if not self.faults.silent:
            self._send_answer(client, start)

    def _send_answer(self, client: bytes, start: int) -> None:
        faults, sent = self.faults, 0
        for seq, payload in self._buffer:
            if seq < start or faults.loses(seq):
                continue
            if sent == faults.stop_after:
                return
            if faults.answer_delay_s:
                time.sleep(faults.answer_delay_s)
            self._reply(client, self.topic.encode(), seq.to_bytes(8, "big"), payload)
            sent += 1
        if sent == faults.stop_after:
            return
        if faults.lose_end_markers:
            faults.lose_end_markers -= 1
        else:
            self._reply(client, b"", END_MARKER, b"")

    def _reply(self, client: bytes, topic: bytes, seq: bytes, payload: bytes) -> None:
        assert self._router is not None
        frames = (client, b"", topic, seq, payload) if self.form == "current" else (client, b"", seq, payload)
        self._router.send_multipart(frames)


def ranks(count: int, **settings: Any) -> list[Publisher]:
    """Publishers of an engine's data-parallel ranks: rank r at the port of rank 0 plus r."""
    return in_a_row(
        count, lambda port: Publisher(**settings) if port is None else Publisher(port=port, patience_s=0.0, **settings)
    )


def bound_port(socket: Socket, host: str) -> int:
    """Bind a socket to any port of a host; which it is."""
    for port in some_ports():
        try:
            socket.bind(f"tcp://{host}:{port}")
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE:
                raise
        else:
            return port
    raise RuntimeError("no free port")


class Bound(Protocol):
    """What listens on a port."""

    @property
    def port(self) -> int:
        """Where."""

    def close(self) -> None:
        """No more."""


B = TypeVar("B", bound=Bound)


def in_a_row(count: int, make: Callable[[int | None], B]) -> list[B]:
    """So many on neighbouring ports. `make` binds a port, any for None; ZMQError when it is taken."""
    for _ in range(50):
        made = [make(None)]
        try:
            for rank in range(1, count):
                made.append(make(made[0].port + rank))
        except zmq.ZMQError:
            for one in made:
                one.close()
        else:
            return made
    raise RuntimeError("no free run of ports")
