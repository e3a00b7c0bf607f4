"""Heads of requests that went the short way, so that equal ones need not be parsed again.

A gateway's requests over one connection begin alike, byte for byte, but for the digits of `content-length`. What
the HTTP parser found in a head holds for every head that has the same bytes around other digits.
"""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

from index.native import CORE

MOST_BYTES = 4096
_MOST = 256
_END = b"\r\n\r\n"
_LENGTH = b"\r\ncontent-length: "


class Known(NamedTuple):
    """What is behind a head that is known: the form of its body, its query, where the body begins."""

    form: str
    query: bytes
    body_at: int


class KnownHeads:
    """The last heads that were kept, some hundred at most, with the form and the query of their requests.

    `core` reads heads faster where there is one; the answer does not depend on it.
    """

    def __init__(self, core: ModuleType | None = CORE.module) -> None:
        self._kept: dict[bytes, tuple[str, bytes]] = {}
        self._apart = head_apart if core is None else core.request_head

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, data: bytes) -> Known | None:
        """What is known of the head that `data` begins with, where `data` is one whole request and nothing more."""
        parts = self._apart(data, MOST_BYTES)
        if parts is None:
            return None
        head, length, body_at = parts
        kept = self._kept.get(head)
        return None if kept is None or len(data) - body_at != length else Known(*kept, body_at)

    def keep(self, data: bytes, form: str, query: bytes) -> None:
        """Keep the head of a request that was parsed, where `data` is that request and nothing more."""
        parts = self._apart(data, MOST_BYTES)
        if parts is None:
            return
        head, length, body_at = parts
        if len(data) - body_at != length:
            return
        if len(self._kept) >= _MOST:
            self._kept.clear()
        self._kept[head] = form, query


def head_apart(data: bytes, most: int) -> tuple[bytes, int, int] | None:
    """The head without its first length, that length, and where the body begins.

    None where no head ends within `most` bytes, or where it has no length of plain decimal digits: a parser may read
    others otherwise.
    """
    end = data.find(_END, 0, most)
    head = data[: end + 2]
    start = head.lower().find(_LENGTH) + len(_LENGTH)
    stop = head.find(b"\r\n", start)
    digits = head[start:stop]
    if end < 0 or start < len(_LENGTH) or not digits.isdigit() or len(digits) > 15:
        return None
    return head[:start] + head[stop:], int(digits), end + len(_END)
