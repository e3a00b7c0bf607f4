"""Ports for a test's servers."""

from __future__ import annotations

from deploy.ports import free_ports, some_ports

__all__ = ["free_port", "free_ports", "some_ports"]


def free_port() -> int:
    """A port of 127.0.0.1 where nobody listens."""
    return free_ports(1)
