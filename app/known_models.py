"""Names of models that have no instance now and may have one again: who asks for them is told to wait."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from app.serving_names import split_name

MAX_NAMES = 4096
"""Of each kind; the oldest are forgotten. What the settings name under `models` is not."""
MAX_NAME = 512
"""Characters; no request asks for a longer one."""


class KnownModels:
    """Models that the settings name or that an instance was configured for, and what their engines listed besides."""

    def __init__(self, expected: Collection[str] = ()) -> None:
        self._expected = frozenset(expected)
        self._models: dict[str, None] = {}
        self._listed: dict[str, str] = {}

    def configured(self, model: str) -> None:
        """An instance serves it, now or later."""
        self._models.pop(model, None)
        self._models[model] = None
        if len(self._models) > MAX_NAMES:
            del self._models[next(iter(self._models))]

    def listed(self, model: str, names: Iterable[str]) -> None:
        """An instance of `model` that is removed listed these names too."""
        for name in names:
            if len(name) <= MAX_NAME:
                self._listed.pop(name, None)
                self._listed[name] = model
        while len(self._listed) > MAX_NAMES:
            del self._listed[next(iter(self._listed))]

    def model_of(self, name: str) -> str | None:
        """The model that a name was of, also as `base:adapter`; None when nobody knows it."""
        if name in self._expected or name in self._models:
            return name
        if (model := self._listed.get(name)) is not None:
            return model
        parts = split_name(name)
        return None if parts is None else self.model_of(parts[0])
