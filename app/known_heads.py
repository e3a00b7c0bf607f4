"""Heads of requests that went the short way, so that equal ones need not be parsed again.

A gateway's requests over one connection begin alike, byte for byte, but for the digits of `content-length`. What
the HTTP parser found in a head holds for every head that has the same bytes around other digits.
"""

from __future__ import annotations

from typing import NamedTuple

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
    """The last heads that were kept, some hundred at most, with the form and the query of their requests."""

    def __init__(self) -> None:
        self._kept: dict[bytes, tuple[str, bytes]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, data: bytes) -> Known | None:
        """What is known of the head that `data` begins with, where `data` is one whole request and nothing more."""
        said, length, body_at = _apart(data)
        kept = self._kept.get(said)
        if kept is None or len(data) - body_at != length:
            return None
        return Known(*kept, body_at)

    def keep(self, data: bytes, form: str, query: bytes) -> None:
        """Keep the head of a request that was parsed, where `data` is that request and nothing more."""
        said, length, body_at = _apart(data)
        if not said or len(said) > MOST_BYTES or len(data) - body_at != length:
            return
        if len(self._kept) >= _MOST:
            self._kept.clear()
        self._kept[said] = form, query


def _apart(data: bytes) -> tuple[bytes, int, int]:
    """The head without its first length, that length, and where the body begins; nothing where there is no length.

    Only plain decimal digits are one: a parser may read others otherwise.
    """
    end = data.find(_END, 0, MOST_BYTES)
    head = data[: end + 2]
    start = head.lower().find(_LENGTH) + len(_LENGTH)
    stop = head.find(b"\r\n", start)
    digits = head[start:stop]
    if end < 0 or start < len(_LENGTH) or not digits.isdigit() or len(digits) > 15:
        return b"", -1, 0
    return head[:start] + head[stop:], int(digits), end + len(_END)
