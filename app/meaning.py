"""What the page of all settings says of one beside its default and what is allowed: marks inside an annotation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a setting does, in one line. `allowed` where neither its type nor its description says it well."""

    text: str
    allowed: str | None = None


@dataclass(frozen=True, slots=True)
class Unit:
    """What a number counts. The mark nearest to the field holds."""

    name: str
