"""Asking a running kvroute over HTTP, for the command line: one question, a time limit, one kind of failure."""

from __future__ import annotations

import httpx

from app.shown import shown


class NoAnswer(Exception):
    """kvroute could not be reached, or what answered is not kvroute; the text says which, and where."""


class Kvroute:
    """A kvroute at a URL. A context manager."""

    def __init__(self, url: str, token: str | None, timeout_s: float) -> None:
        self._url = (url if "://" in url else f"http://{url}").rstrip("/")
        headers = {"authorization": f"Bearer {token}"} if token else {}
        try:
            self._client = httpx.Client(base_url=self._url, headers=headers, timeout=timeout_s, trust_env=False)
        except (httpx.InvalidURL, ValueError) as error:
            raise NoAnswer(f"{shown(url)} is no URL: {shown(str(error))}") from None

    def __enter__(self) -> Kvroute:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def get(self, path: str) -> tuple[int, dict[str, object]]:
        """Status and JSON object at a path."""
        return self._ask("GET", path, None)

    def post(self, path: str, body: dict[str, object]) -> tuple[int, dict[str, object]]:
        """Status and JSON object of the answer to a JSON body."""
        return self._ask("POST", path, body)

    def _ask(self, method: str, path: str, body: dict[str, object] | None) -> tuple[int, dict[str, object]]:
        try:
            response = self._client.request(method, path, json=body)
        except httpx.TimeoutException:
            raise NoAnswer(f"{self._url}{path} did not answer in time") from None
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            reason = shown(str(error) or type(error).__name__)
            raise NoAnswer(f"{self._url} cannot be reached: {reason}") from None
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise NoAnswer(f"{self._url}{path} answered {response.status_code}, but not as kvroute does")
        return response.status_code, answer
