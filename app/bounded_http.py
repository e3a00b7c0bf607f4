"""uvicorn's HTTP protocol with a bound for what comes before and between bodies: request lines, headers, trailers.

A request that is refused before all of it was read gets its answer: a socket that is closed with unread input resets
the connection, and what was written last may be lost with it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

MAX_HEAD_BYTES = 64 * 1024
"""Of a head that is not complete; one read from the socket more is taken at most."""
LINGER_S, LINGER_BYTES = 2.0, 16 << 20
"""How long, and of how much, the rest of a refused request is taken and thrown away."""
_TOO_LARGE = b"the request line and the headers are larger than 65536 bytes"


class BoundedHttp(HttpToolsProtocol):
    """One connection. A client that sends headers without an end is refused with 431 and cut off."""

    _head_bytes = 0
    """What came since a head was complete, or a part of a body came; counted per read from the socket."""
    _left_bytes: int | None = None
    """Of a request that was refused, so much more is taken; None: none was."""
    _end: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        """Parse, unless too much has come for a head, or the request was refused."""
        if self._left_bytes is not None:
            self._left_bytes -= len(data)
            if self._left_bytes < 0:
                self.transport.close()
            return
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse_head()

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._head_bytes = 0
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not None and self.cycle is not before:
            answering: Any = _AnsweredFirst(self, self.cycle)
            self.cycle.transport = answering

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._head_bytes = 0
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is left to wait for."""
        if self._end is not None:
            self._end.cancel()
        super().connection_lost(exc)

    def close_answered(self, cycle: RequestResponseCycle) -> None:
        """Close; when a part of the request is still to come, only once the client had time to read the answer."""
        if cycle.more_body:
            self._linger()
        else:
            self.transport.close()

    def _linger(self) -> None:
        if self._left_bytes is not None or self.transport.is_closing():
            return
        if not self.transport.can_write_eof():  # TLS
            self.transport.close()
            return
        self._left_bytes = LINGER_BYTES
        self.transport.write_eof()
        self.flow.resume_reading()
        self._end = self.loop.call_later(LINGER_S, self.transport.close)

    def _refuse_head(self) -> None:
        """Answer 431, unless another answer is under way, and close."""
        self.logger.warning("The head of a request is too large.")
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()
        else:
            length = str(len(_TOO_LARGE)).encode()
            head = [STATUS_LINE[431], b"content-type: text/plain; charset=utf-8\r\n", b"content-length: ", length]
            self.transport.write(b"".join([*head, b"\r\nconnection: close\r\n\r\n", _TOO_LARGE]))
            self._linger()


class _AnsweredFirst:
    """The transport of one request on the ordinary way, closed as its connection sees fit."""

    def __init__(self, connection: BoundedHttp, cycle: RequestResponseCycle) -> None:
        self._connection = connection
        self._cycle = cycle

    def __getattr__(self, name: str) -> object:
        found: object = getattr(self._connection.transport, name)
        return found

    def close(self) -> None:
        """The answer is written."""
        self._connection.close_answered(self._cycle)
