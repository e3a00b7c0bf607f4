"""Ports of 127.0.0.1 for servers, below the range from which outgoing connections take theirs.

A listener that dials a port nobody has bound yet can otherwise meet itself, or take the port of a server that is away.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator

HOST = "127.0.0.1"
FIRST, LAST = 18_000, 32_000
TRIES = 100
LAST_PORT = 65_535


def free_ports(count: int = 1) -> int:
    """The first of `count` neighbouring ports on which nobody listens now. OSError when none are found."""
    for first in some_ports(count):
        if not taken_ports(first, count):
            return first
    raise OSError(f"found no {count} neighbouring ports that are free")


def some_ports(count: int = 1) -> Iterator[int]:
    """A bounded number of ports to try, drawn at random; `count` neighbours from each on are below the range too."""
    for _ in range(TRIES):
        yield random.randrange(FIRST, LAST - count + 1)


def taken_ports(first: int, count: int) -> list[int]:
    """Those of `count` ports from `first` on where somebody listens or that may not be used."""
    return [port for port in range(first, first + count) if not _is_free(port)]


def _is_free(port: int) -> bool:
    if not 0 < port <= LAST_PORT:
        return False
    try:
        socket.create_server((HOST, port)).close()
    except OSError:
        return False
    return True
