"""Namespaces of vLLM's LoRA adapters: one name stands for other weights, and other KV, once its path has changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

STRANGER = "\0?"
"""Behind a name: blocks hashed with a path that is not known. No request asks for them."""


class AdapterLabels:
    """Labels of adapters by model, name and path, the same on all instances of a model.

    The label of a path is the name itself for the first path known, so that blocks filed before any was known fit; else
    the name and a number. A path that comes back has its label again.
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
        number = paths.index(path)
        return f"{name}\0{number}" if number else name

    def paths(self, model: str, name: str) -> Sequence[str]:
        """Every path known so far."""
        return tuple(self._paths.get((model, name), ()))

    def forget(self, model: str) -> None:
        """The model has no instance left."""
        for key in [key for key in self._paths if key[0] == model]:
            del self._paths[key]
