"""Ports for servers that are told where to listen."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A port of 127.0.0.1 where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
