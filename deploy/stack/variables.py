"""The variables of an env file, and their places in the texts of a compose file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from deploy.stack.failure import StackFailed

_LINE = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)")
_PLACE = re.compile(r"\$(?:\$|([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?:(:?[-?])([^}]*))?\}|(.?))")


def read_variables(file: Path) -> dict[str, str]:
    """NAME=VALUE per line, `#` begins a comment line; quotes around a whole value are taken off. Raises StackFailed."""
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StackFailed(f"{file}: cannot be read: {error}") from None
    found: dict[str, str] = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        if (match := _LINE.fullmatch(line)) is None:
            raise StackFailed(f"{file}: line {number}: {line!r} is not NAME=VALUE")
        found[match[1]] = _unquoted(match[2].strip())
    return found


def interpolated(value: object, variables: Mapping[str, str]) -> object:
    """A parsed compose file with its `${NAME:-default}` and `${NAME:?message}` filled in; `$$` becomes `$`.

    Raises StackFailed for a variable that must be set and is not, and for what is no variable.
    """
    if isinstance(value, str):
        return _PLACE.sub(lambda place: _filled(place, variables), value)
    if isinstance(value, dict):
        return {key: interpolated(inner, variables) for key, inner in value.items()}
    if isinstance(value, list):
        return [interpolated(inner, variables) for inner in value]
    return value


def _filled(place: re.Match[str], variables: Mapping[str, str]) -> str:
    if place[0] == "$$":
        return "$"
    name, operator, rest = place[1] or place[2], place[3] or "", place[4] or ""
    if name is None:
        raise StackFailed(f"{place[0]!r} is no variable; a dollar sign itself is written $$")
    text = variables.get(name)
    is_given = bool(text) if operator.startswith(":") else text is not None
    if is_given and text is not None:
        return text
    if operator.endswith("?"):
        raise StackFailed(f"{name} is not set: {rest}")
    return rest if operator else ""


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
