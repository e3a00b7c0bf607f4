"""Namespaces of vLLM's LoRA adapters: one name stands for other weights, and other KV, once its path has changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xxhash import xxh3_64_hexdigest

from app.instance import Instance
from engine.facts import EngineFacts

STRANGER = "\0?"
"""Behind a name: blocks hashed with a path that is not known. No request asks for them."""


class AdapterLabels:
    """Labels of adapters by model, name and path: a name and its path's digest, the name alone while that is unknown.

    They are the same on all instances, replicas and in stored state, whatever paths were known before.
    """

    def __init__(self) -> None:
        self._paths: dict[tuple[str, str], list[str]] = {}

    def know(self, model: str, adapters: Mapping[str, str]) -> None:
        """An engine of `model` serves these adapters, name -> path."""
        for name, path in adapters.items():
            self.label(model, name, path)

    def label(self, model: str, name: str, path: str | None) -> str:
        """The namespace of an adapter loaded from `path`; None: not known."""
        if path is None:
            return name
        paths = self._paths.setdefault((model, name), [])
        if path not in paths:
            paths.append(path)
        return f"{name}\0{xxh3_64_hexdigest(path.encode(errors='surrogatepass'))}"

    def paths(self, model: str, name: str) -> Sequence[str]:
        """Every path known so far."""
        return tuple(self._paths.get((model, name), ()))

    def forget(self, model: str) -> None:
        """The model has no instance left."""
        for key in [key for key in self._paths if key[0] == model]:
            del self._paths[key]


def take_list(instance: Instance, told: EngineFacts, asked_at: float, *, anew: bool) -> None:
    """Before `told` becomes the instance's facts: what it means for what is known of its adapters so far.

    `asked_at` is when the engine was asked, `anew`: the answer is another process's. An engine that was seen to load or
    unload adapters may do so again between two looks. A doubt ends with a list that is newer, or says something else.
    """
    known = instance.facts
    if anew:
        instance.adapters_moved = False
        instance.doubts.clear()
    if not told.models and not told.adapters:
        return
    if not anew and (known.models or known.adapters) and known.adapters != told.adapters:
        instance.adapters_moved = True
    instance.listed_at = asked_at
    for name, doubt in list(instance.doubts.items()):
        if doubt.at < asked_at or told.adapters.get(name) != doubt.path:
            del instance.doubts[name]
