"""Request ids: ULIDs, 26 characters of Crockford's base 32 that sort by time."""

from __future__ import annotations

from functools import lru_cache
from os import urandom

_ALPHABET = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_SHIFTS = tuple(range(45, -1, -5))
_OF_BYTE = _ALPHABET * 8
"""The character of a byte's lowest five bits."""


def new_request_id(unix_s: float) -> str:
    """An unguessable id: 48 bits of milliseconds, then 80 random bits. Ordered to the millisecond."""
    return _time(int(unix_s * 1000) & 0xFFFF_FFFF_FFFF) + urandom(16).translate(_OF_BYTE).decode()


@lru_cache(maxsize=1)
def _time(ms: int) -> str:
    """The first ten characters; under load many ids have the same."""
    return bytes([_ALPHABET[ms >> shift & 31] for shift in _SHIFTS]).decode()
