"""docs/settings.md: every setting as the models have it. `kvroute settings` prints it."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from app.meaning import Meaning, Unit
from app.settings import Settings
from app.settings_text import PREFIX, inner_model

_HEAD = """# Settings

Written by `kvroute settings` from the models of the settings; do not edit it. All of them as a file, with more words:
[deploy/fleet.example.yaml](../deploy/fleet.example.yaml). What a file and the environment come to is shown by
`kvroute config-check FILE`.

A setting is a key of the YAML file or an environment variable, and the environment wins. A variable is taken as it is
where the setting is text; flags are true or false, yes or no, on or off, 1 or 0; all else is JSON, and `null` means
none where a setting may be null. A section can also be given whole, as JSON: `KVROUTE_HASH='{"seed": "0"}'`. What is
not allowed stops the start, with the key, the value and what is allowed.
"""

_TAIL = """
## Beside the settings

| variable | read by | allowed | meaning |
|---|---|---|---|
| `KVROUTE_CONFIG` | `kvroute serve`, `uvicorn app.main:app` | a path | the settings file; `--config` wins |
| `KVROUTE_CORE` | every process | auto, native or python | which core serves ([native.md](native.md)); unset: auto |
| `PYTHONHASHSEED` | `seed: auto` | text | one of the seeds that are tried where an engine's is looked for |
"""

_WHOLE = {"models": ("models.NAME.", "as JSON, by model name"), "instances": ("instances[].", "as a JSON list")}


class Row(NamedTuple):
    """One setting. `variable` is None where only a whole section can come from the environment."""

    key: str
    variable: str | None
    default: str
    unit: str
    allowed: str
    meaning: str


def settings_page() -> str:
    """The whole page, Markdown."""
    parts = [_HEAD, "## Outside of sections\n", _table([_row(key, key, field) for key, field in _plain(Settings)])]
    for name, field in Settings.model_fields.items():
        model = inner_model(field.annotation)
        if model is not None:
            parts += [f"\n## {name}\n", f"{model.__doc__}{_whole(name)}\n", _table(list(section_rows(name, model)))]
    return "\n".join(parts) + "\n" + _TAIL


def section_rows(name: str, model: type[BaseModel]) -> Iterator[Row]:
    """The settings of a section, or of one element of `models` or `instances`."""
    prefix, _ = _WHOLE.get(name, (f"{name}.", ""))
    for key, field in model.model_fields.items():
        yield _row(prefix + key, None if name in _WHOLE else f"{name}__{key}", field)


def _plain(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    for key, field in model.model_fields.items():
        if inner_model(field.annotation) is None:
            yield key, field


def _whole(name: str) -> str:
    if name not in _WHOLE:
        return ""
    return f" From the environment only whole: `{PREFIX}{name.upper()}`, {_WHOLE[name][1]}."


def _row(key: str, variable: str | None, field: FieldInfo) -> Row:
    unit = next((mark.name for mark in field.metadata if isinstance(mark, Unit)), "")
    meaning = next(mark for mark in field.metadata if isinstance(mark, Meaning))
    full = PREFIX + variable.upper() if variable else None
    allowed = meaning.allowed or _allowed(field)
    if type(None) in _leaves(field.annotation):
        allowed += ", or null"
    return Row(key, full, _default(field), unit, allowed, meaning.text)


def _default(field: FieldInfo) -> str:
    """As YAML writes it."""
    if field.is_required():
        return "none: it must be given"
    value = field.get_default(call_default_factory=True, validated_data={})
    match value:
        case None:
            return "`null`"
        case bool():
            return f"`{value}`".lower()
        case SecretStr():
            return f"`{value.get_secret_value()}`"
        case float():
            return f"`{value:g}`"
        case BaseModel():
            return "the fleet's"
        case _:
            return f"`{value}`" if value != "" else '`""`'


def _allowed(field: FieldInfo) -> str:
    """By the type and its bounds; the description where these say nothing."""
    if (model := inner_model(field.annotation)) is not None:
        return f"a group of keys: {', '.join(model.model_fields)}"
    *but_last, last = [word for kind in _leaves(field.annotation) for word in _words(kind)] or [""]
    words = f"{', '.join(but_last)} or {last}" if but_last else last
    return words or _range(field) or field.description or ""


def _words(kind: object) -> list[str]:
    if kind is bool:
        return ["true", "false"]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [str(member.value) for member in kind]
    return [kind] if isinstance(kind, str) else []


def _range(field: FieldInfo) -> str | None:
    low, above, high = (_bound(field, name) for name in ("ge", "gt", "le"))
    if high is None:
        return None
    return f"{low}..{high}" if low is not None else f"above {above}, up to {high}"


def _bound(field: FieldInfo, name: str) -> str | None:
    """pydantic keeps bounds as marks with these attributes."""
    bounds = (getattr(mark, name, None) for mark in field.metadata)
    return next((f"{bound:.15g}" for bound in bounds if bound is not None), None)


def _leaves(annotation: object) -> list[object]:
    """The types of a union and the words of a Literal, flat."""
    parts = typing.get_args(annotation)
    return [leaf for part in parts for leaf in _leaves(part)] if parts else [annotation]


def _table(rows: list[Row]) -> str:
    lines = ["| key | variable | default | unit | allowed | meaning |", "|---|---|---|---|---|---|"]
    for row in rows:
        variable = f"`{row.variable}`" if row.variable else ""
        cells = (f"`{row.key}`", variable, row.default, row.unit, row.allowed, row.meaning)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)
