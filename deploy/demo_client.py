"""The demo's questions to the router over HTTP, and how long it waits for things to become true."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import httpx

from deploy.counters import total
from deploy.demo_engines import Delivered
from deploy.demo_processes import DemoFailed


class RouterClient:
    """A router at a URL. Every question takes at most 5 s. Raises DemoFailed for any answer but the expected one."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._client = httpx.Client(base_url=url, timeout=5.0, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def ready(self) -> bool:
        """Whether it runs, and has reached or given up on every instance."""
        try:
            return self._client.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def instance(self, name: str) -> dict[str, Any]:
        """An instance as `GET /instances/{id}` shows it."""
        instance: dict[str, Any] = self._ask("GET", f"/instances/{name}", None, 200).json()
        return instance

    def worker(self, name: str) -> dict[str, Any]:
        """An instance's first rank."""
        worker: dict[str, Any] = self.instance(name)["workers"][0]
        return worker

    def add(self, instance: dict[str, str]) -> None:
        """Add an instance."""
        self._ask("POST", "/instances", instance, 201)

    def route(self, body: dict[str, Any]) -> dict[str, Any]:
        """The answer of `POST /route`."""
        answer: dict[str, Any] = self._ask("POST", "/route", body, 200).json()
        return answer

    def match(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """What each worker holds of a prompt: `POST /index/match`."""
        candidates: list[dict[str, Any]] = self._ask("POST", "/index/match", body, 200).json()["candidates"]
        return candidates

    def finished(self, request_id: str, delivered: Delivered) -> None:
        """Report a request's end, as a gateway does."""
        usage = {"cached_tokens": delivered.cached_tokens, "prompt_tokens": delivered.prompt_tokens}
        self._ask("POST", f"/requests/{request_id}/finished", usage, 204)

    def total(self, metric: str) -> float:
        """The sum of a counter's series."""
        return total(self._ask("GET", "/metrics", None, 200).text, metric)

    def _ask(self, method: str, path: str, body: object, status: int) -> httpx.Response:
        try:
            response = self._client.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise DemoFailed(f"{method} {path} got no answer: {error or type(error).__name__}") from None
        if response.status_code != status:
            raise DemoFailed(f"{method} {path} answered {response.status_code}: {response.text}")
        return response


def wait_until(true: Callable[[], bool], otherwise: str, limit_s: float) -> None:
    """Ask `true` every 20 ms. DemoFailed with `otherwise` when it stays false."""
    end = time.monotonic() + limit_s
    while not true():
        if time.monotonic() > end:
            raise DemoFailed(f"{otherwise} within {limit_s:g} s")
        time.sleep(0.02)
