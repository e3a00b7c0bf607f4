"""Engines that fail in one way each, as sockets: what a gateway sees of a crash, a hang, or a host that is gone."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from tests.support.ports import free_port

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK = b"6\r\ndata: \r\n"
Behaviour = Callable[[socket.socket, threading.Event], None]


def closes(client: socket.socket, ended: threading.Event) -> None:
    """It closes without an answer."""


def hangs(client: socket.socket, ended: threading.Event) -> None:
    """It never answers."""
    ended.wait()


def breaks_off(client: socket.socket, ended: threading.Event) -> None:
    """It closes within a stream."""
    client.sendall(STREAM + CHUNK)
    time.sleep(0.2)  # so that the pieces and the end are two events for the gateway


def resets(client: socket.socket, ended: threading.Event) -> None:
    """Its process is gone within a stream: the connection is reset."""
    breaks_off(client, ended)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def breaks_off_after_headers(client: socket.socket, ended: threading.Event) -> None:
    """It closes before a stream's first piece."""
    client.sendall(STREAM)
    time.sleep(0.2)


def answers_in_part(client: socket.socket, ended: threading.Event) -> None:
    """It closes within an answer whose length it said."""
    client.sendall(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"id": ')
    time.sleep(0.2)


def falls_silent(client: socket.socket, ended: threading.Event) -> None:
    """It hangs within a stream."""
    client.sendall(STREAM + CHUNK)
    ended.wait()


def says(status: int) -> Behaviour:
    """It answers with this status."""

    def answer(client: socket.socket, ended: threading.Event) -> None:
        client.sendall(b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}" % status)

    return answer


@contextmanager
def failing_engine(behaviour: Behaviour) -> Iterator[str]:
    """The URL of a server that reads a request's first piece and then does as it is told."""
    ended = threading.Event()

    def serve(client: socket.socket) -> None:
        with client:
            client.recv(65536)
            behaviour(client, ended)

    def accept() -> None:
        while not ended.is_set():
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(client,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        ended.set()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5.0)


@contextmanager
def refusing() -> Iterator[str]:
    """Nobody listens."""
    yield f"http://127.0.0.1:{free_port()}"


@contextmanager
def silent_host() -> Iterator[str]:
    """Neither accepts nor refuses, as an address that nobody has: the queue of its connections is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(8):
            waits = stack.enter_context(socket.socket())
            waits.setblocking(False)
            waits.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
