"""uvicorn's HTTP protocol with a short way for `POST /route`: no task, no ASGI messages, one write.

Everything else goes uvicorn's own way, and so does a routing request with anything uncommon about it. The short way can
be left until the answer is written: what came so far is then given to uvicorn as if it came only now.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.utils import get_client_addr, get_path_with_query_string
from uvicorn.server import ServerState

from app.bounded_http import BoundedHttp
from app.short_route import STATE_KEY, ShortRoute

MAX_URL_BYTES = 8192
"""A longer one is judged on the ordinary way: what it holds may be more than uvicorn can parse."""
HEADS_TRIED = 4
"""Heads of a connection that are kept without one of them coming again; then they are not looked at any more."""
WAITS_S = 0.05
"""How long a body may take to arrive on the short way; the ordinary one limits the time of slower ones."""


class ShortHttp(BoundedHttp):
    """One connection. Takes the short way where the application's lifespan offers one."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        offered = app_state.get(STATE_KEY)
        apart = config.limit_concurrency is not None or config.root_path
        self._route: ShortRoute | None = offered if isinstance(offered, ShortRoute) and not apart else None
        self._form: str | None = None
        self._chunks: list[bytes] | None = None
        """The body so far of a request on the short way; None while there is none."""
        self._turn = False
        self._timer: asyncio.TimerHandle | None = None
        self._between = True
        """Whether the parser has seen whole requests only."""
        self._tries = HEADS_TRIED if self._route is not None and not self.access_log else 0
        self._rests_since = 0.0
        """When the last answer was written to a request whose head was known, in the loop's time."""

    def data_received(self, data: bytes) -> None:
        """Parse. One request of what arrives together may go the short way, so that others get their turn."""
        self._turn = True
        if self._tries and self._between and self._is_idle():
            self._receive_at_once(data)
        else:
            super().data_received(data)
        if self._chunks is not None and self._timer is None:
            self._timer = self.loop.call_later(WAITS_S, self._leave)

    def on_message_begin(self) -> None:
        """A request begins."""
        self._between = False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Hold a request back from uvicorn if it may go the short way."""
        if self._turn and self._may_go():
            self._turn, self._chunks, self._head_bytes = False, [], 0
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        if self._chunks is None:
            super().on_body(body)
        else:
            self._head_bytes = 0
            self._chunks.append(body)

    def on_message_complete(self) -> None:
        """The request is whole: answer it here, or leave it to uvicorn."""
        self._between = True
        if self._chunks is None:
            super().on_message_complete()
            return
        self._head_bytes = 0
        assert self._form is not None
        chunks = self._chunks
        answered = self._answered(self._form, self._query(), chunks[0] if len(chunks) == 1 else b"".join(chunks))
        if answered:
            self.on_response_complete()
            self._stop_waiting()
        else:
            self._leave()
            super().on_message_complete()

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection, unless it was not quiet for so long."""
        left_s = self._rests_since + self.timeout_keep_alive - self.loop.time()
        if left_s > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left_s, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    def shutdown(self) -> None:
        """A request whose body is still to come is answered before the connection closes."""
        self._leave()
        super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        """A request that was cut off is counted as one."""
        if self._chunks:
            self._chunks.clear()
        self._leave()
        super().connection_lost(exc)

    def _may_go(self) -> bool:
        url, parser = self.url, self.parser
        if self._route is None or not (url == b"/route" or url.startswith(b"/route?")) or b"#" in url:
            return False
        if len(url) > MAX_URL_BYTES:
            return False
        if parser.get_method() != b"POST" or parser.get_http_version() != "1.1" or parser.should_upgrade():
            return False
        if not parser.should_keep_alive() or not self._is_idle():
            return False
        self._form = self._route.form(self.headers)
        return self._form is not None

    def _is_idle(self) -> bool:
        """Whether an answer could be written now."""
        if self.flow.write_paused or self._left_bytes is not None or self.transport.is_closing():
            return False
        return self.cycle is None or self.cycle.response_complete

    def _receive_at_once(self, data: bytes) -> None:
        """A request whose head is known needs no parser; the head of another is kept if it goes the short way."""
        assert self._route is not None
        heads, answered = self._route.heads, self._route.answered
        known = heads.find(data)
        if known is not None:
            form, query, body_at = known
            body = data[body_at:]
            if len(body) <= self._route.max_body_bytes and self._answered(form, query, body):
                self._tries, self._head_bytes = HEADS_TRIED, 0
                self._rest()
                return
            self._turn = False
        super().data_received(data)
        if self._form is not None and self._between and self._route.answered == answered + 1:
            self._tries -= 1
            heads.keep(data, self._form, self._query())

    def _query(self) -> bytes:
        return self.url[len(b"/route?") :]

    def _answered(self, form: str, query: bytes, body: bytes) -> bool:
        """Write the answer. False: there is none on the short way."""
        assert self._route is not None
        try:
            content = self._route.answer(form, query, body) if self._is_idle() else None
        except Exception:
            self.logger.exception("the short way failed; the request goes the ordinary one")
            return False
        if content is None:
            return False
        self.transport.write(self._route.lines(self.server_state.default_headers) + content)
        if self.access_log:
            self._log_access(query)
        return True

    def _rest(self) -> None:
        """As `on_response_complete` where nothing waits. The timer that closes a quiet connection stays as it is."""
        if self.timeout_keep_alive_task is None:
            self.on_response_complete()
        else:
            self.server_state.total_requests += 1
            self._rests_since = self.loop.time()

    def _log_access(self, query: bytes) -> None:
        """As uvicorn does."""
        self.scope["path"], self.scope["query_string"] = "/route", query
        path = get_path_with_query_string(self.scope)
        self.access_logger.info('%s - "%s %s HTTP/%s" %d', get_client_addr(self.scope), "POST", path, "1.1", 200)

    def _leave(self) -> None:
        """Give uvicorn what is held back, if anything is."""
        chunks = self._chunks
        self._stop_waiting()
        if chunks is None:
            return
        super().on_headers_complete()
        for chunk in chunks:
            super().on_body(chunk)

    def _stop_waiting(self) -> None:
        self._chunks = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
