"""Values out of JSON whose shape nobody promises: the value if it has the expected type, else None or nothing."""

from __future__ import annotations


def text(value: object) -> str | None:
    """A string."""
    return value if isinstance(value, str) else None


def count(value: object) -> int | None:
    """A whole number from 0 to 2^31 - 1, also as decimal text; no booleans, no floats."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 10:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31:
        return value
    return None


def rank_number(value: object) -> int | None:
    """An engine's number of a data-parallel rank: whole, of at most 15 digits, also as decimal text."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 15:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**15 else None


def measure(value: object) -> float | None:
    """A number from 0 to 10^18. NaN and infinities are None: not known."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 10**18:
        return float(value)
    return None


def mapping(value: object) -> dict[str, object]:
    """An object, else an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: object) -> list[object]:
    """An array, else an empty one."""
    return value if isinstance(value, list) else []
