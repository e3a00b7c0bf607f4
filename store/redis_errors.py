"""What goes wrong with Redis, as a label for metrics and a text without credentials or contents."""

from __future__ import annotations

import re

import redis.exceptions as known

from store.state import StateError

_DETAIL_CHARS = 200

_WORDS = {
    "OOM": "oom",
    "READONLY": "readonly",
    "MISCONF": "disk",
    "WRONGTYPE": "type",
    "NOPERM": "permission",
    "NOAUTH": "auth",
    "WRONGPASS": "auth",
    "LOADING": "loading",
    "BUSY": "busy",
    "CLUSTERDOWN": "cluster",
    "MASTERDOWN": "cluster",
    "TRYAGAIN": "cluster",
    "MOVED": "cluster",
    "ASK": "cluster",
}
"""Error codes. Before Redis 7 a script's error has its code somewhere in the text."""

_CODE = re.compile(r"\b(" + "|".join(_WORDS) + r")\b")


def state_error(op: str, error: BaseException) -> StateError:
    """The error of an operation."""
    return StateError(op, reason_of(error), _detail(error))


def reason_of(error: BaseException) -> str:
    """See `StateError`."""
    match error:
        case known.AuthenticationError():
            return "auth"
        case known.BusyLoadingError():
            return "loading"
        case known.OutOfMemoryError():
            return "oom"
        case known.ReadOnlyError():
            return "readonly"
        case known.NoPermissionError() | known.AuthorizationError():
            return "permission"
        case known.RedisClusterException() | known.ClusterError() | known.AskError() | known.TryAgainError():
            return "cluster"
        case known.TimeoutError() | TimeoutError():
            return "timeout"
        case known.ConnectionError() | OSError():
            return "connection"
    code = _CODE.search(str(error)) if isinstance(error, known.ResponseError) else None
    return _WORDS[code[1]] if code else "other"


def _detail(error: BaseException) -> str:
    """Texts of other errors than these may repeat the command with all it carries."""
    name = type(error).__name__
    if not isinstance(error, known.RedisError | OSError) or not str(error):
        return name
    return f"{name}: {error}"[:_DETAIL_CHARS]
