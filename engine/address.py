"""Where and how an engine is asked over HTTP."""

from __future__ import annotations

from dataclasses import dataclass, field

from index.worker import EngineKind


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """An engine's HTTP face: its kind, its base URL, and the bearer token it asks for. The token is not in its repr."""

    kind: EngineKind
    url: str
    key: str | None = field(default=None, repr=False)
