"""From a settings file and the environment to Settings, or to one error that says all that is wrong."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path as FilePath
from typing import NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from app.rank_endpoints import FORMS
from app.settings import Settings
from app.settings_text import Path, UnreadableText, inner_model, read_environment, read_yaml
from app.shown import shown

_MAX_FILE_BYTES = 16 << 20
_USERINFO = re.compile(r"(?<=://)[^/@\s]*@")


class SettingsError(Exception):
    """The settings cannot be used. The text has one line per fault: file, key, value and what is allowed."""


class Fault(NamedTuple):
    """One wrong value: where it stands, how it is shown, and what would be right."""

    path: Path
    value: str | None
    allowed: str

    @property
    def key(self) -> str:
        """The dotted path."""
        return shown(".".join(str(part) for part in self.path), 300)

    @property
    def sentence(self) -> str:
        """The fault without its place."""
        return self.allowed if self.value is None else f"{self.value}: {self.allowed}"


def load_settings(file: FilePath | None, environ: Mapping[str, str]) -> Settings:
    """Settings from a YAML file (None: all defaults) with the environment's values over it. Raises SettingsError."""
    origin = shown(str(file), 300) if file else "settings"
    try:
        tree: dict[str, object] = read_yaml(_text(file)) if file else {}
    except UnreadableText as error:
        raise SettingsError(f"{origin}: {error}") from None
    try:
        overrides = read_environment(environ, Settings)
    except UnreadableText as error:
        raise SettingsError(str(error)) from None
    for path, (name, value) in sorted(overrides.items(), key=lambda item: len(item[0])):
        _put(tree, path, value, name)
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        names = {path: name for path, (name, _) in overrides.items()}
        lines = [_line(origin, fault, names) for fault in faults(error, Settings)]
        raise SettingsError("\n".join(lines)) from None


def faults(error: ValidationError, model: type[BaseModel]) -> list[Fault]:
    """What pydantic found, in words: at most 20 faults, values shortened and secrets masked."""
    return [_fault(found, model) for found in error.errors(include_url=False)[:20]]


def _text(file: FilePath) -> str:
    try:
        with file.open("rb") as opened:
            raw = opened.read(_MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise UnreadableText(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(raw) > _MAX_FILE_BYTES:
        raise UnreadableText(f"is larger than {_MAX_FILE_BYTES} bytes")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableText(f"is not UTF-8 (byte {error.start})") from None


def _put(tree: dict[str, object], path: Path, value: object, name: str) -> None:
    """Set a value at a path in nested dicts, making a section that is absent or null."""
    here = tree
    for part in path[:-1]:
        below = here.get(str(part))
        if below is None:
            below = here[str(part)] = {}
        if not isinstance(below, dict):
            raise SettingsError(f"environment {name}: {part} is not a section in the file")
        here = below
    here[str(path[-1])] = value


def _line(origin: str, fault: Fault, names: dict[Path, str]) -> str:
    set_by = next(
        (names[fault.path[:size]] for size in range(len(fault.path), 0, -1) if fault.path[:size] in names), None
    )
    place = f"environment {set_by}" if set_by else origin
    if not fault.key:
        return f"{place}: {fault.sentence}"
    return f"{place}: {fault.key}{':' if fault.value is None else ' ='} {fault.sentence}"


def _fault(found: ErrorDetails, model: type[BaseModel]) -> Fault:
    path, kind, value = _place(found["loc"]), found["type"], found["input"]
    if kind == "extra_forbidden":
        return Fault(path, None, _unknown_key(str(path[-1]), _model_at(model, path[:-1])))
    described = _description(model, path)
    allowed = f"; allowed: {described}" if described else ""
    if kind == "missing":
        return Fault(path, None, f"is missing{allowed}")
    whole = isinstance(value, BaseModel | dict | list) and kind == "value_error"
    return Fault(path, None if whole else _masked(path, value), f"{_words(kind, found['msg'], value)}{allowed}")


def _place(loc: Path) -> Path:
    """Where it stands in the text: without pydantic's names of the forms that a value can have, and of a map's key."""
    kept = [part for before, part in pairwise(("", *loc)) if before not in ("events", "replay") or part not in FORMS]
    return tuple(kept[:-1] if kept[-1:] == ["[key]"] else kept)


def _words(kind: str, message: str, value: object) -> str:
    if kind == "string_type" and value is not None and not isinstance(value, dict | list):
        return f"{_unquoted(value)}, not text; write it in quotes"
    if kind in ("model_type", "dict_type"):
        return "must be a group of keys"
    if kind == "union_tag_not_found":
        return "must be an endpoint, a list of them, or a map of them by rank"
    if kind in ("literal_error", "enum"):
        return "is none of the words known"
    return re.sub(r"^Input should be ", "must be ", message).removeprefix("Value error, ")


def _unquoted(value: object) -> str:
    if isinstance(value, bool):
        return "is true or false (as YAML reads yes, no, on and off)"
    return "is a number" if isinstance(value, int | float) else "is a date"


def _masked(path: Path, value: object) -> str:
    if "token" in path or "api_key" in path:
        return "(secret)"
    if path[:1] == ("instances",) and len(path) <= 2 and isinstance(value, str):
        return f"text of {len(value)} characters"  # with whatever keys it holds
    return f'"{shown(_USERINFO.sub("***@", value))}"' if isinstance(value, str) else shown(value)


def _unknown_key(key: str, model: type[BaseModel] | None) -> str:
    known = list(model.model_fields) if model else []
    near = difflib.get_close_matches(key.lower(), known, n=1)
    return f"is not a known key; {f'did you mean {near[0]}?' if near else 'allowed: ' + ', '.join(known)}"


def _description(model: type[BaseModel], path: Path) -> str | None:
    parent = _model_at(model, path[:-1])
    field = parent.model_fields.get(str(path[-1])) if parent and path else None
    return field.description if field else None


def _model_at(model: type[BaseModel], path: Path) -> type[BaseModel] | None:
    """The model whose keys stand at a path; the part after a list or dict field is a position or a free key."""
    here: type[BaseModel] | None = model
    free = False
    for part in path:
        if free:
            free = False
            continue
        field = here.model_fields.get(str(part)) if here else None
        if field is None:
            return None
        here = inner_model(field.annotation)
        free = field.annotation is not here
    return here
