"""Names of models that have no instance now and may have one again: who asks for them is told to wait."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from app.serving_names import split_name

MAX_NAMES = 4096
"""Other names of models that are remembered; the oldest are forgotten."""
MAX_NAME = 512
"""Characters; no request asks for a longer one."""


class KnownModels:
    """Models that the settings name under `models`, and what their engines listed besides."""

    def __init__(self, expected: Collection[str] = ()) -> None:
        self._expected = frozenset(expected)
        self._listed: dict[str, str] = {}

    def listed(self, model: str, names: Iterable[str]) -> None:
        """An instance of `model` that is removed listed these names too."""
        if model not in self._expected:
            return
        for name in names:
            if len(name) <= MAX_NAME:
                self._listed.pop(name, None)
                self._listed[name] = model
        while len(self._listed) > MAX_NAMES:
            del self._listed[next(iter(self._listed))]

    def model_of(self, name: str) -> str | None:
        """The model that a name was of, also as `base:adapter`; None when nobody knows it."""
        if name in self._expected:
            return name
        if (model := self._listed.get(name)) is not None:
            return model
        parts = split_name(name)
        return None if parts is None else self.model_of(parts[0])
