"""Messages off a socket, all that wait at once.

pyzmq needs several calls for a message of three frames. The native core makes them itself where it can, with pyzmq's
own libzmq: by the addresses of its functions, for nothing of it is linked.
"""

from __future__ import annotations

import ctypes
import errno
import importlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import zmq

from engine.sockets import Socket
from index.native import CORE

MOST = 64
"""Messages taken at once, at most."""
MOST_BYTES = 256 * 1024
"""Bytes after which no further message is taken at once."""


class Waiting(NamedTuple):
    """Messages as they came, each with all its frames. `more`: others may wait."""

    messages: list[list[bytes]]
    more: bool


def by_pyzmq(socket: Socket) -> Waiting:
    """What waits on an open socket, without waiting. Raises zmq.ZMQError."""
    messages: list[list[bytes]] = []
    size_bytes = 0
    while len(messages) < MOST and size_bytes < MOST_BYTES:
        try:
            frames = socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return Waiting(messages, False)
        messages.append(frames)
        size_bytes += sum(map(len, frames))
    return Waiting(messages, True)


def native_reader() -> Callable[[Socket], Waiting] | None:
    """As `by_pyzmq`, by the native core; None where it is not there, or pyzmq's libzmq is not found."""
    functions = _libzmq_functions()
    if CORE.module is None or functions is None:
        return None
    waiting = CORE.module.FrameReader(*functions).waiting

    def by_core(socket: Socket) -> Waiting:
        messages, error = waiting(socket.underlying, MOST, MOST_BYTES)
        if error not in (0, errno.EAGAIN):
            raise zmq.ZMQError(error)
        return Waiting(messages, error == 0)

    return by_core


def _libzmq_functions() -> list[int] | None:
    """Addresses in the library that pyzmq has loaded, in the order that the core takes them."""
    names = ("msg_init", "msg_close", "msg_recv", "msg_data", "msg_size", "msg_more", "errno")
    try:
        backend: Any = importlib.import_module("zmq.backend.cython._zmq")
        library = ctypes.CDLL(backend.__file__)
        found = [ctypes.cast(getattr(library, f"zmq_{name}"), ctypes.c_void_p).value for name in names]
    except (ImportError, OSError, AttributeError):  # another backend, or libzmq's names are hidden in it
        return None
    addresses = [address for address in found if address is not None]
    return addresses if zmq.zmq_version_info()[0] == 4 and len(addresses) == len(names) else None


waiting: Final = native_reader() or by_pyzmq
"""What waits on an open socket, without waiting; MOST messages, or little more than MOST_BYTES. Raises zmq.ZMQError."""
