"""Request ids: ULIDs, 26 characters of Crockford's base 32 that sort by time."""

from __future__ import annotations

from secrets import randbits

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = tuple(high + low for high in _ALPHABET for low in _ALPHABET)
_SHIFTS = tuple(range(120, -1, -10))


def new_request_id(unix_s: float) -> str:
    """An unguessable id: 48 bits of milliseconds, then 80 random bits. Ordered to the millisecond."""
    number = (int(unix_s * 1000) & 0xFFFF_FFFF_FFFF) << 80 | randbits(80)
    return "".join([_PAIRS[number >> shift & 1023] for shift in _SHIFTS])
