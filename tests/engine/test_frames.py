"""Messages off a real socket, read by the native core as pyzmq reads them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
import zmq

from engine import frames
from engine.frames import MOST, MOST_BYTES, Waiting, by_pyzmq
from engine.sockets import Socket
from index.native import CORE

LIMIT_S = 10.0
READERS = [by_pyzmq] if CORE.module is None else [by_pyzmq, frames.native_reader()]


@pytest.fixture
def pair() -> Iterator[tuple[Socket, Socket]]:
    context: zmq.Context[Socket] = zmq.Context()
    sender, receiver = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    for socket in (sender, receiver):
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.SNDHWM, 0)
        socket.set(zmq.RCVHWM, 0)
    receiver.connect(f"tcp://127.0.0.1:{sender.bind_to_random_port('tcp://127.0.0.1')}")
    yield sender, receiver
    context.destroy(linger=0)


def all_of(read: Callable[[Socket], Waiting], receiver: Socket, count: int) -> list[list[bytes]]:
    """So many messages; fails when they do not come in time, or others come."""
    found: list[list[bytes]] = []
    end = time.monotonic() + LIMIT_S
    while len(found) < count and time.monotonic() < end:
        receiver.poll(100)
        while True:
            messages, more = read(receiver)
            assert len(messages) <= MOST
            assert more or len(messages) < MOST
            found += messages
            if not more:
                break
    assert read(receiver) == Waiting([], False)
    return found


def test_the_native_core_reads_by_itself_here() -> None:
    """Else it would be pyzmq that the other tests show twice."""
    assert CORE.module is None or frames.native_reader() is not None


@pytest.mark.parametrize("read", READERS)
def test_every_message_comes_whole_and_in_order(pair: tuple[Socket, Socket], read: Callable[[Socket], Waiting]) -> None:
    sender, receiver = pair
    sent = [[b"x" * (number % 40), b"", *[bytes([number % 256]) * 3000] * (number % 5)] for number in range(3 * MOST)]
    sent += [[b""], [b"\0" * 40_000], [b"last"]]
    for message in sent:
        sender.send_multipart(message)
    assert all_of(read, receiver, len(sent)) == sent


@pytest.mark.parametrize("read", READERS)
def test_large_messages_are_taken_a_few_at_a_time(
    pair: tuple[Socket, Socket], read: Callable[[Socket], Waiting]
) -> None:
    sender, receiver = pair
    for _ in range(6):
        sender.send(b"x" * (MOST_BYTES // 2))
    end = time.monotonic() + LIMIT_S
    messages: list[list[bytes]] = []
    while not messages and time.monotonic() < end:  # all six, once the last of them has come
        receiver.poll(100)
        time.sleep(0.2)
        messages, more = read(receiver)
    assert (len(messages), more) == (2, True)
    assert len(all_of(read, receiver, 4)) == 4


@pytest.mark.parametrize("read", READERS)
def test_a_socket_that_cannot_receive_is_an_error(
    pair: tuple[Socket, Socket], read: Callable[[Socket], Waiting]
) -> None:
    with pytest.raises(zmq.ZMQError) as raised:
        read(pair[0])
    assert raised.value.errno == zmq.ENOTSUP
