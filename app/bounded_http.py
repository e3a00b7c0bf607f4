"""uvicorn's HTTP protocol with a bound for what comes before and between bodies: request lines, headers, trailers."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
"""Of a head that is not complete; one read from the socket more is taken at most."""
_TOO_LARGE = b"the request line and the headers are larger than 65536 bytes"


class BoundedHttp(HttpToolsProtocol):
    """One connection. A client that sends headers without an end is refused with 431 and cut off."""

    _head_bytes = 0
    """What came since a head was complete, or a part of a body came; counted per read from the socket."""

    def data_received(self, data: bytes) -> None:
        """Parse, unless too much has come for a head."""
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse_head()

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._head_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._head_bytes = 0
        super().on_message_complete()

    def _refuse_head(self) -> None:
        """Answer 431, unless another answer is under way, and close."""
        self.logger.warning("The head of a request is too large.")
        if self.cycle is None or self.cycle.response_complete:
            length = str(len(_TOO_LARGE)).encode()
            head = [STATUS_LINE[431], b"content-type: text/plain; charset=utf-8\r\n", b"content-length: ", length]
            self.transport.write(b"".join([*head, b"\r\nconnection: close\r\n\r\n", _TOO_LARGE]))
        self.transport.close()
