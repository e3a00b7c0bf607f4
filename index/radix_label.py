"""Names of the radix tree's namespaces, and the longer labels under which they are stored."""

from __future__ import annotations

import re
from typing import NamedTuple

_HIDDEN = re.compile(r"\?(-?\d{1,20})(?:([=!])(.*))?", re.DOTALL)
_NAMES = re.compile(r"(\d{1,9}):(.*)", re.DOTALL)


class Filing(NamedTuple):
    """Where a root is filed, and as what it is recorded: with all that must be known of it after a warm start."""

    namespace: str
    label: str


class Label(NamedTuple):
    """What a label says. `wire` None: filed by name. `fixed`: the adapter's id follows from its path."""

    wire: int | None
    salt: str | None
    lora: str | None
    fixed: bool


def named(cache_salt: str | None, lora_name: str | None) -> str:
    """The namespace of a salt and an adapter, both told by name."""
    return "=" + _names(cache_salt, lora_name)


def hidden(wire: int) -> str:
    """The namespace of whoever names its first page so."""
    return f"?{wire}"


def labelled(wire: int, cache_salt: str | None, lora_name: str, *, fixed: bool) -> str:
    """The label of a hidden namespace that was seen with an adapter's name."""
    return f"{hidden(wire)}{'!' if fixed else '='}{_names(cache_salt, lora_name)}"


def read_label(label: str) -> Label | None:
    """A namespace or label read; None for what is neither."""
    if label.startswith("="):
        names = _read_names(label[1:])
        return None if names is None else Label(None, *names, fixed=False)
    match = _HIDDEN.fullmatch(label)
    if match is None:
        return None
    wire, mark, rest = match.groups()
    if mark is None:
        return Label(int(wire), None, None, fixed=False)
    names = _read_names(rest)
    return None if names is None else Label(int(wire), *names, fixed=mark == "!")


def _names(cache_salt: str | None, lora_name: str | None) -> str:
    salt = cache_salt or ""
    return f"{len(salt)}:{salt}{lora_name or ''}"


def _read_names(text: str) -> tuple[str | None, str | None] | None:
    match = _NAMES.fullmatch(text)
    if match is None or int(match[1]) > len(match[2]):
        return None
    length, both = int(match[1]), match[2]
    return both[:length] or None, both[length:] or None
