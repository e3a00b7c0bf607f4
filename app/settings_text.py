"""Strict reading of the two texts settings come in: a YAML file and environment variables."""

from __future__ import annotations

import difflib
import json
import re
import typing
from collections.abc import Hashable, Mapping
from typing import NoReturn

import yaml
from pydantic import BaseModel

from app.shown import shown

PREFIX = "KVROUTE_"
_OF_OTHERS = frozenset(
    PREFIX + name
    for name in (
        *("CONFIG", "CORE", "CORE_FILE", "PURE"),  # the command line, index/native.py, tests, the build
        *("URLS", "TIMEOUT_S", "TOKEN", "TOKEN_FILE"),  # gateways
        *("VERSION", "TRACE", "LIVE"),  # docker-compose.yml, benchmarks
    )
)
"""Variables that something else of kvroute reads: they may stand in the same environment."""

_SERVICE_LINK = re.compile(
    r"KVROUTE(_\w+)?_(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
"""What Kubernetes gives every pod for a Service whose name begins with kvroute."""

Path = tuple[str | int, ...]
"""Where a value stands: keys and list positions from the top."""


class RepeatedKey(ValueError):
    """A JSON object gives `key` twice."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the key {shown(key)} is given twice")
        self.key = key


class UnreadableText(Exception):
    """The text has no usable structure; the message says where and why."""


def read_yaml(text: str) -> dict[str, object]:
    """The mapping in a YAML text; {} for an empty one. Refuses what YAML lets pass in silence: repeated keys."""
    try:
        value = yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - a subclass of SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}: " if mark else ""
        raise UnreadableText(f"{place}{error.problem or 'not YAML'}") from None
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise UnreadableText(str(error).splitlines()[0]) from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UnreadableText("the top must be a mapping of keys to values")
    return value


def read_environment(environ: Mapping[str, str], model: type[BaseModel]) -> dict[Path, tuple[str, object]]:
    """For each setting in the environment: its path, the variable's name and its value, read by the setting's type.

    UnreadableText for a variable that looks like a setting and is none (two underscores, or nearly a setting's name): a
    setting that has no effect is worse than a start that fails. Others that begin with KVROUTE_ are somebody else's.
    """
    found: dict[Path, tuple[str, object]] = {}
    for name in sorted(environ):
        if not name.startswith(PREFIX):
            continue
        keys = name.removeprefix(PREFIX).lower().split("__")
        if len(keys) > 1 and _is_list(model, keys[0]):
            whole = PREFIX + keys[0].upper()
            raise UnreadableText(f"environment {shown(name)}: {whole} takes the whole list as JSON, not single keys")
        if keys[0] in model.model_fields and all(keys):
            found[tuple(keys)] = (name, _value(environ[name], _annotation(model, keys)))
        elif name not in _OF_OTHERS and not _SERVICE_LINK.fullmatch(name) and (hint := _hint(name, keys, model)):
            raise UnreadableText(f"environment {shown(name)}: unknown setting; {hint}")
    return found


def unique_pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An `object_pairs_hook` for json that refuses a repeated key with RepeatedKey."""
    made: dict[str, object] = {}
    for key, value in pairs:
        if key in made:
            raise RepeatedKey(key)
        made[key] = value
    return made


def inner_model(annotation: object) -> type[BaseModel] | None:
    """The settings model inside an annotation like `list[M]`, `dict[str, M]` or `M | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in typing.get_args(annotation) if (found := inner_model(part))), None)


class _StrictLoader(yaml.SafeLoader):
    """YAML 1.1 as SafeLoader reads it, without repeated or unhashable keys, and with 1e3 a number."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                _refuse(key_node, "keys must be text; quote this one")
            if key in seen:
                _refuse(key_node, f"the key {shown(key)} is given twice")
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def _refuse(node: yaml.Node, problem: str) -> NoReturn:
    raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def _annotation(model: type[BaseModel], keys: list[str]) -> object:
    here: type[BaseModel] | None = model
    annotation: object = None
    for key in keys:
        if here is None or key not in here.model_fields:
            return None
        annotation = here.model_fields[key].annotation
        here = annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
    return annotation


def _is_list(model: type[BaseModel], section: str) -> bool:
    return section in model.model_fields and typing.get_origin(model.model_fields[section].annotation) is list


def _value(text: str, annotation: object) -> object:
    """Text stays text; flags take true/false, yes/no, on/off, 1/0; all else is JSON. What fits nothing stays text."""
    leaves = set(_leaves(annotation))
    if bool in leaves:
        return {"true": True, "yes": True, "on": True, "1": True}.get(
            text.lower(), False if text.lower() in ("false", "no", "off", "0") else text
        )
    if inner_model(annotation) is None and not leaves & {int, float}:
        return None if text == "null" and type(None) in leaves else text
    try:
        return typing.cast(object, json.loads(text, object_pairs_hook=unique_pairs))
    except (ValueError, RecursionError):
        return text


def _leaves(annotation: object) -> list[object]:
    parts = typing.get_args(annotation)
    return [leaf for part in parts for leaf in _leaves(part)] if parts else [annotation]


def _hint(name: str, keys: list[str], model: type[BaseModel]) -> str | None:
    """What was meant, or what there is; None where no setting was. One underscore for two is the likeliest slip."""
    if len(keys) > 1:
        near = difflib.get_close_matches(keys[0], model.model_fields, n=1, cutoff=0.75)
        return f"did you mean {near[0].upper()}?" if near else f"sections are {', '.join(model.model_fields)}"
    names = [*_names(model), *_OF_OTHERS]
    near = [one for one in names if one.replace("__", "_") == name]
    near = near or difflib.get_close_matches(name, names, n=1, cutoff=0.85)
    return f"did you mean {near[0]}?" if near else None


def _names(model: type[BaseModel]) -> list[str]:
    """All variables that set something."""
    names = []
    for section, field in model.model_fields.items():
        names.append(PREFIX + section.upper())
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            names += [f"{names[-1]}__{key.upper()}" for key in inner.model_fields]
    return names
