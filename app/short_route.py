"""`POST /route` from bytes to bytes in one synchronous step, for the common request: token ids and nothing wrong.

It answers as `app.api_route` does. Whatever is not common it leaves to that, before anything has been decided.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Mapping

import msgspec

from app.known_heads import KnownHeads
from app.problems import Problem
from app.route_answer import answer_body, answer_lines
from app.route_body import read_route_request
from app.service import Service

STATE_KEY = "kvroute.short_route"
"""Where the lifespan's state holds the process's ShortRoute, for the server's protocols."""

_ENCODER = msgspec.json.Encoder()
_FORMS = {b"application/json": "application/json", b"application/octet-stream": "application/octet-stream"}
_PASSED_OVER = frozenset({b"transfer-encoding", b"content-encoding", b"upgrade", b"expect", b"trailer"})
"""Headers with a meaning of their own for the body."""


class ShortRoute:
    """The short way through one process's objects. `answered` counts the requests that went it to the end.

    `heads` are those of requests that did.
    """

    def __init__(self, service: Service) -> None:
        self.answered = 0
        self.heads = KnownHeads()
        self._server_headers: list[tuple[bytes, bytes]] = []
        self._lines = b""
        self._routing = service.routing
        self._metrics = service.around.metrics
        self.max_body_bytes = service.settings.limits.body_bytes
        self._max_prompt_tokens = service.settings.limits.prompt_tokens
        token = service.settings.auth.token
        self._authorization = None if token is None else b"Bearer " + token.get_secret_value().encode()

    def form(self, headers: list[tuple[bytes, bytes]]) -> str | None:
        """The content type of a POST with these headers (names in lower case), if it is one for the short way.

        None: it has no body of known length that is allowed, or not the token, or something about it is uncommon.
        """
        given: dict[bytes, bytes] = {}
        for name, value in headers:
            if name in given or name in _PASSED_OVER:
                return None
            given[name] = value
        length = given.get(b"content-length", b"")
        if not length.isdigit() or len(length) > 15 or int(length) > self.max_body_bytes:
            return None
        return _FORMS.get(given.get(b"content-type", b"application/json")) if self._admits(given) else None

    def lines(self, server_headers: list[tuple[bytes, bytes]]) -> bytes:
        """The status line of a 200 answer and the server's own headers: a new list of them every second."""
        if server_headers is not self._server_headers:
            self._server_headers = server_headers
            headers = b"".join([b"%b: %b\r\n" % header for header in server_headers])
            self._lines = b"HTTP/1.1 200 OK\r\n" + headers
        return self._lines

    def answer(self, form: str, query: bytes, body: bytes) -> bytes | None:
        """The headers and the body of a 200 answer, without a status line; None: it is for the ordinary way.

        `form` is what `form` said of its headers.
        """
        began = time.perf_counter()
        try:
            request = read_route_request(body, form, query, self._max_prompt_tokens)
            if request.tokens is None or request.explain:
                return None
            routed = self._routing.decide(request, self._routing.target(request), request.tokens, None)
        except Problem:
            return None
        content = _ENCODER.encode(answer_body(routed, self._routing.fleet, self._routing.router))
        if not request.dry_run:
            self._metrics.route_took(time.perf_counter() - began)
        self.answered += 1
        head = f"{answer_lines(routed)}content-length: {len(content)}\r\ncontent-type: application/json\r\n\r\n"
        return head.encode("latin-1") + content

    def _admits(self, given: Mapping[bytes, bytes]) -> bool:
        if self._authorization is None:
            return True
        return hmac.compare_digest(given.get(b"authorization", b""), self._authorization)
