"""Ports for servers, below the range from which outgoing connections take theirs.

A listener that dials a port nobody has bound yet can otherwise meet itself, or take the port of a server that is away.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator

FIRST, LAST = 18_000, 32_000
TRIES = 100


def free_port() -> int:
    """A port of 127.0.0.1 where nobody listens."""
    return free_ports(1)


def free_ports(count: int) -> int:
    """The first of `count` neighbouring ports of 127.0.0.1 on which nobody listens now."""
    for first in some_ports():
        if all(map(_is_free, range(first, first + count))):
            return first
    raise RuntimeError("no free run of ports")


def some_ports() -> Iterator[int]:
    """A bounded number of ports to try, drawn at random; the neighbours above them are below the range too."""
    for _ in range(TRIES):
        yield random.randrange(FIRST, LAST)


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
