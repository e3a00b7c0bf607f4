"""What the commands share on the terminal: the width of tables, the end after a fault, a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

Advance = Callable[[float, float], None]
"""Says how much of how much is done."""


def console() -> Console:
    """For standard output; wide enough for whole names when that is no terminal."""
    made = Console()
    return made if made.is_terminal else Console(width=200)


def fail(message: str, status: int) -> NoReturn:
    """End the command with a message on standard error."""
    typer.echo(message, err=True)
    raise typer.Exit(status)


@contextmanager
def progress(what: str) -> Iterator[Advance]:
    """A bar on standard error while the block lasts; nothing when that is no terminal."""
    out = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
