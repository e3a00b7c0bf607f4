"""A round of questions to one engine, of which some may fail."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from http import HTTPStatus
from typing import TypeVar

from engine.address import EngineAddress
from engine.http_answer import EngineUnreachable, UnusableAnswer, fetch, fetch_object, fetch_text
from engine.http_client import HttpClient

T = TypeVar("T")

REFUSALS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
"""What an engine answers to who has no key, or another one."""


class Inquiry:
    """Questions to one engine. A question that fails gives None and is remembered; each takes at most `timeout_s`.

    `reached` tells whether any HTTP answer came back, also an unusable one, and `heard_at` when the last one did
    (time.monotonic()); `timed_out` whether one did not come in time; `statuses` what was answered other than 200, by
    path; `refused` which paths want (another) key.
    """

    def __init__(self, client: HttpClient, address: EngineAddress, timeout_s: float) -> None:
        self.url = address.url.rstrip("/")
        self.heard_at: float | None = None
        self.kind = address.kind
        self.timed_out = False
        self.statuses: dict[str, int] = {}
        self.refused: dict[str, HTTPStatus] = {}
        self._key = address.key
        self._client = client
        self._timeout_s = timeout_s
        self._answered = False
        self._failures: list[str] = []

    async def ask(self, path: str) -> dict[str, object] | None:
        """The JSON object at `path`."""
        return await self._answer(path, fetch_object(self._client, self.url + path, self._timeout_s, self._key))

    async def read(self, path: str) -> str | None:
        """The text at `path`."""
        return await self._answer(path, fetch_text(self._client, self.url + path, self._timeout_s, self._key))

    async def status(self, path: str) -> int | None:
        """The status of the answer at `path`, whatever it says."""
        answer = await self._answer(path, fetch(self._client, self.url + path, self._timeout_s, key=self._key))
        return None if answer is None else answer.status

    @property
    def reached(self) -> bool:
        """Whether anything was answered."""
        return self.heard_at is not None

    @property
    def failure(self) -> str:
        """What failed first, in words; empty when nothing did."""
        return self._failures[0] if self._failures else ""

    def require_answer(self) -> None:
        """EngineUnreachable with every failure when no question was answered. That a key is missing is an answer."""
        if not self._answered and not self.refused:
            raise EngineUnreachable("; ".join(self._failures))

    def refusal(self) -> str | None:
        """What to do about the paths that want a key, in words; None when there are none."""
        if not self.refused:
            return None
        status = next(iter(self.refused.values()))
        paths = ", ".join(self.refused)
        said = f"{self.url} answers {status.value} {status.phrase} to GET {paths}"
        if self._key is None:
            return f"{said}: set `api_key` or `api_key_file` of the instance"
        return f"{said}: its api_key is refused; is it the engine's --api-key?"

    async def _answer(self, path: str, question: Awaitable[T]) -> T | None:
        try:
            answer = await question
        except UnusableAnswer as error:
            self.heard_at = time.monotonic()
            if error.status is not None:
                self.statuses[path] = error.status
            if error.status in REFUSALS:
                self.refused[path.partition("?")[0]] = HTTPStatus(error.status)
            self._failures.append(str(error))
            return None
        except EngineUnreachable as error:
            self.timed_out = self.timed_out or error.timed_out
            self._failures.append(str(error))
            return None
        self.heard_at, self._answered = time.monotonic(), True
        return answer
