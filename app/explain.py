"""Showing a routing answer with all its candidates, and reading the token ids to ask for."""

from __future__ import annotations

import re
from typing import TextIO

from rich.table import Table
from rich.text import Text

from app.shown import shown

_COLUMNS = ("matched", "reusable", "gpu/cpu/disk", "trust", "running", "waiting", "kv", "score", "remark")


class UnreadableTokens(Exception):
    """The text is no list of token ids."""


def read_tokens(source: TextIO) -> list[int]:
    """Token ids separated by commas or white space, with or without brackets. Raises UnreadableTokens."""
    try:
        words = re.split(r"[\s,]+", source.read().strip().strip("[]").strip())
    except UnicodeDecodeError:
        raise UnreadableTokens("the tokens are not text") from None
    wrong = next((word for word in words if not re.fullmatch(r"[0-9]{1,10}", word)), None)
    if wrong is not None:
        raise UnreadableTokens(f"{shown(wrong)!r} is no token id" if wrong else "there are no token ids")
    return [int(word) for word in words]


def headline(answer: dict[str, object]) -> str:
    """The decision in a sentence."""
    where = f"{shown(answer.get('instance'))} rank {shown(answer.get('dp_rank'))} ({shown(answer.get('reason'))})"
    if answer.get("prompt_tokens") is None:
        return f"{where}: the text was not tokenised"
    return f"{where}: {shown(answer.get('reusable_tokens'))} of {shown(answer['prompt_tokens'])} tokens reusable"


def candidates_table(answer: dict[str, object]) -> Table:
    """All candidates, the chosen one marked."""
    table = Table("", "instance", "rank", *_COLUMNS)
    chosen = (answer.get("instance"), answer.get("dp_rank"))
    candidates = answer.get("candidates")
    for entry in candidates if isinstance(candidates, list) else []:
        if isinstance(entry, dict):
            mark = "*" if (entry.get("instance"), entry.get("dp_rank")) == chosen else ""
            table.add_row(mark, *(Text(cell) for cell in _cells(entry)))
    return table


def _cells(entry: dict[str, object]) -> list[str]:
    tiers, load = _dict(entry.get("by_medium")), _dict(entry.get("load"))
    return [
        shown(entry.get("instance")),
        shown(entry.get("dp_rank")),
        _number(entry.get("matched_tokens")),
        _number(entry.get("reusable_tokens")),
        "/".join(_number(tiers.get(tier)) for tier in ("gpu", "cpu", "disk")),
        shown(entry.get("trust")),
        _number(load.get("running")),
        _number(load.get("waiting")),
        _number(load.get("kv_usage")),
        _number(entry.get("score")),
        shown(entry.get("why") or "", 200),
    ]


def _dict(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else shown(value)
