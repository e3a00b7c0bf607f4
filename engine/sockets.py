"""Sockets as a listener needs them: without limits of their own, and watched."""

from __future__ import annotations

from collections.abc import Callable

import zmq
import zmq.asyncio

from engine.bells import Bells

Socket = zmq.Socket[bytes]


class Sockets:
    """Opens and closes the sockets of one listener. Opened, one is watched: `ring` is called when it may be read."""

    def __init__(self, context: zmq.asyncio.Context, bells: Bells) -> None:
        self._context: zmq.Context[Socket] = zmq.Context.shadow(context.underlying)
        self._bells = bells

    def open(self, kind: int, ring: Callable[[], None]) -> Socket:
        """A socket without a connection."""
        socket: Socket = self._context.socket(kind)
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.RCVHWM, 0)
        socket.set(zmq.IPV6, 1)
        self._bells.watch(socket.FD, ring)
        return socket

    def open_monitor(self, of: Socket, events: int, ring: Callable[[], None]) -> Socket:
        """The socket that tells what happens to another's connection."""
        monitor: Socket = of.get_monitor_socket(events)
        self._bells.watch(monitor.FD, ring)
        return monitor

    def close(self, socket: Socket) -> None:
        """Close what was opened here, once or again."""
        if not socket.closed:
            self._bells.forget(socket.FD)
            socket.close(0)
