"""The connections to engines' HTTP servers.

aiohttp's, not httpx's: in httpx's pool a call that is cancelled while it connects, as every time limit does, can keep
its place for ever (docs/adr/0011).
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

import aiohttp

MOST_CONNECTIONS = 1024
KEEP_ALIVE_S = 4.0
"""Engines under uvicorn close a quiet connection after 5 s: who closes later may ask on one that is being closed."""


class HttpClient:
    """Made anywhere, used in one event loop, closed there. Cookies are neither kept nor sent back; no proxies.

    `most`: connections at once; further calls wait for a place, within their time limits.
    """

    def __init__(self, most: int = MOST_CONNECTIONS) -> None:
        self._most = most
        self._session: aiohttp.ClientSession | None = None

    def session(self) -> aiohttp.ClientSession:
        """aiohttp's session, made at the first call; RuntimeError outside of a running loop."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._most, keepalive_timeout=KEEP_ALIVE_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
            )
        return self._session

    async def aclose(self) -> None:
        """Close all connections. It may be used again afterwards."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
