"""How text from outside is shown in answers, logs and error lines: short, one line, always encodable."""

from __future__ import annotations

import math
import re

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_SHOWN_CHARS = 80
_SHOWN_BITS = 256


def encodable(text: str) -> str:
    """The text with lone surrogates written as `\\udXXX`, so that UTF-8 can hold it; other text is unchanged."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


def shown(value: object, limit: int = _SHOWN_CHARS) -> str:
    """One line of at most `limit` characters (and an ellipsis) for any value, control characters escaped."""
    if isinstance(value, int) and value.bit_length() > _SHOWN_BITS:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    text = value if isinstance(value, str) else repr(value)
    cut = text if len(text) <= limit else text[:limit] + "…"
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), cut)


def json_safe(value: object) -> object:
    """A copy that any strict JSON writer and reader takes: no lone surrogates, NaN or Infinity (null instead)."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {encodable(str(key)): json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_safe(item) for item in value]
    if value is None or (isinstance(value, int) and value.bit_length() <= _SHOWN_BITS):
        return value
    return shown(value)


def counted(count: int, one: str, more: str | None = None) -> str:
    """`1 worker`, `2 workers`."""
    return f"{count} {one if count == 1 else more or one + 's'}"
