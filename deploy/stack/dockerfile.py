"""A Dockerfile read: its stages and what they say."""

from __future__ import annotations

import json
import re
from typing import NamedTuple


class Instruction(NamedTuple):
    """One instruction, its name in capitals, its lines joined."""

    name: str
    argument: str

    @property
    def words(self) -> tuple[str, ...]:
        """The exec form; () when it is not written so."""
        try:
            words = json.loads(self.argument)
        except ValueError:
            return ()
        return tuple(map(str, words)) if isinstance(words, list) else ()


Stage = tuple[Instruction, ...]
"""From its FROM to the next."""


def stages(text: str) -> list[Stage]:
    """All stages in order. ValueError for a text that does not begin with FROM (ARG may stand before it)."""
    found: list[list[Instruction]] = []
    for instruction in _instructions(text):
        if instruction.name == "FROM":
            found.append([])
        if found:
            found[-1].append(instruction)
        elif instruction.name != "ARG":
            raise ValueError(f"{instruction.name} stands before the first FROM")
    if not found:
        raise ValueError("no FROM")
    return [tuple(stage) for stage in found]


def last(stage: Stage, name: str) -> Instruction | None:
    """The instruction that counts where the last one wins: USER, ENTRYPOINT, CMD, WORKDIR, HEALTHCHECK."""
    return next((instruction for instruction in reversed(stage) if instruction.name == name), None)


def _instructions(text: str) -> list[Instruction]:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\[ \t]*\n", " ", "\n".join(lines))
    found = []
    for line in joined.splitlines():
        name, _, argument = line.strip().partition(" ")
        found.append(Instruction(name.upper(), argument.strip()))
    return found
