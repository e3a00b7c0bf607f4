"""uvicorn's HTTP protocol with a short way for `POST /route`: no task, no ASGI messages, one write.

Everything else goes uvicorn's own way, and so does a routing request with anything uncommon about it. The short way can
be left until the answer is written: what came so far is then given to uvicorn as if it came only now.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.protocols.utils import get_client_addr, get_path_with_query_string
from uvicorn.server import ServerState

from app.bounded_http import BoundedHttp
from app.short_route import STATE_KEY, ShortRoute

MAX_URL_BYTES = 8192
"""A longer one is judged on the ordinary way: what it holds may be more than uvicorn can parse."""
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

    def data_received(self, data: bytes) -> None:
        """Parse. One request of what arrives together may go the short way, so that others get their turn."""
        self._turn = True
        super().data_received(data)
        if self._chunks is not None and self._timer is None:
            self._timer = self.loop.call_later(WAITS_S, self._leave)

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
        if self._chunks is None:
            super().on_message_complete()
            return
        self._head_bytes = 0
        try:
            answered = self._answered(self._chunks)
        except Exception:
            self.logger.exception("the short way failed; the request goes the ordinary one")
            answered = False
        if answered:
            self._stop_waiting()
        else:
            self._leave()
            super().on_message_complete()

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
        if not parser.should_keep_alive() or self.flow.write_paused or self.transport.is_closing():
            return False
        idle = self.cycle is None or self.cycle.response_complete
        self._form = self._route.form(self.headers) if idle else None
        return self._form is not None

    def _answered(self, chunks: list[bytes]) -> bool:
        """Write the answer. False: there is none on the short way."""
        assert self._route is not None
        assert self._form is not None
        if self.flow.write_paused or self.transport.is_closing():
            return False
        query = self.url[len(b"/route?") :]
        content = self._route.answer(self._form, query, chunks[0] if len(chunks) == 1 else b"".join(chunks))
        if content is None:
            return False
        output = [STATUS_LINE[200]]
        for name, value in self.server_state.default_headers:
            output += [name, b": ", value, b"\r\n"]
        output.append(content)
        self.transport.write(b"".join(output))
        if self.access_log:
            self._log_access(query)
        self.on_response_complete()
        return True

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
