"""kvroute state: what is in the state store, for operators. Credentials are never printed."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, TypeVar

import typer

from app.export_file import BadExport
from app.logs import configure_logs
from app.settings import LogSettings, Settings
from app.settings_file import SettingsError, load_settings
from app.shown import counted, shown
from app.stored_worker import StoredWorker, instances_table, read_stored, workers_table
from app.terminal import console, fail, progress
from app.transfer import check_export, export_state, import_state
from index.worker import Worker
from store.state import RegisteredInstance, StateError, StateLimits, StateStore
from store.state_url import check_url, open_store, shown_url

FAILED, MISUSED = 1, 2

T = TypeVar("T")
Rows = list[tuple[Worker, StoredWorker | None]]

state_commands = typer.Typer(help="Look at, save and delete what is in the state store.", no_args_is_help=True)

Config = Annotated[Path | None, typer.Option("--config", envvar="KVROUTE_CONFIG", help="settings file")]
Url = Annotated[
    str | None,
    typer.Option(
        "--state", help="the store, instead of that of the settings; better KVROUTE_STATE, which no process list shows"
    ),
]
Timeout = Annotated[float, typer.Option("--timeout", min=0.1, max=600.0, help="seconds for each answer")]


@state_commands.command()
def show(config: Config = None, state: Url = None, timeout: Timeout = 10.0) -> None:
    """Show what is stored of each worker, and the registry. Exit status 1 when the store does not answer."""

    async def read(store: StateStore) -> tuple[Rows, list[RegisteredInstance]]:
        rows: Rows = []
        workers = await store.workers()
        with progress("reading") as advance:
            for worker in workers:
                stored = await store.load(worker)
                rows.append((worker, None if stored is None else read_stored(stored)))
                advance(len(rows), len(workers))
        instances = await store.instances()
        return rows, [instances[id] for id in sorted(instances)]

    rows, instances = _with_store(config, state, timeout, read)
    out = console()
    out.print(workers_table(rows, time.time()))
    out.print(instances_table(instances))


@state_commands.command("export")
def export_(
    file: Annotated[Path, typer.Argument(help="the file to write; an older one is replaced")],
    config: Config = None,
    state: Url = None,
    timeout: Timeout = 10.0,
) -> None:
    """Write everything that is stored to a file, which only its owner can read. Exit status 1 when that fails."""
    try:
        with _replaced(file) as opened, progress("exporting") as advance:
            done = _with_store(config, state, timeout, lambda store: export_state(store, opened, advance))
    except OSError as error:
        fail(f"{shown(str(file), 300)} cannot be written: {error.strerror or error}", FAILED)
    for worker in done.unreadable:
        typer.echo(f"left out, not readable: {_name(worker)}", err=True)
    typer.echo(
        f"{counted(done.workers, 'worker')} with {counted(done.entries, 'log entry', 'log entries')} and"
        f" {counted(done.instances, 'instance')} written to {file}"
    )


@state_commands.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="a file of kvroute state export")],
    replace: Annotated[bool, typer.Option("--replace", help="overwrite what is newer in the store, too")] = False,
    config: Config = None,
    state: Url = None,
    timeout: Timeout = 10.0,
) -> None:
    """Store what a file holds; what is newer in the store is kept. Exit status 2 for a file that cannot be used."""
    try:
        with file.open("rb") as opened, progress("importing") as advance:
            total = 2 * os.fstat(opened.fileno()).st_size
            check_export(opened, lambda position: advance(position, total))
            done = _with_store(
                config,
                state,
                timeout,
                lambda store: import_state(
                    store, opened, replace, lambda position: advance(total / 2 + position, total)
                ),
            )
    except OSError as error:
        fail(f"{shown(str(file), 300)} cannot be read: {error.strerror or error}", MISUSED)
    except BadExport as error:
        fail(f"{shown(str(file), 300)} is not used: {error}", MISUSED)
    for name in (*done.kept_instances, *map(_name, done.kept_workers)):
        typer.echo(f"kept what is in the store: {shown(name, 300)}", err=True)
    typer.echo(f"{counted(done.workers, 'worker')} and {counted(done.instances, 'instance')} stored")


@state_commands.command()
def clear(
    worker: Annotated[str, typer.Option("--worker", help="an instance's id (all its ranks), or instance/rank")],
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
    config: Config = None,
    state: Url = None,
    timeout: Timeout = 10.0,
) -> None:
    """Delete what is stored of a worker. A running kvroute that follows it stores it again. Exit status 1: none is."""

    async def find(store: StateStore) -> list[Worker]:
        return _meant(worker, await store.workers())

    async def forget(store: StateStore) -> None:
        for one in meant:
            await store.forget(one)

    meant = _with_store(config, state, timeout, find)
    if not meant:
        fail(f"nothing is stored of {shown(worker, 300)}", FAILED)
    names = ", ".join(map(_name, meant))
    if not yes:
        typer.confirm(f"Delete the state of {names}?", abort=True)
    _with_store(config, state, timeout, forget)
    typer.echo(f"deleted: {names}")


def _with_store(
    config: Path | None, url: str | None, timeout_s: float, work: Callable[[StateStore], Awaitable[T]]
) -> T:
    settings = _settings(config, url)
    configure_logs(LogSettings(level="warning", format="text"))
    place = settings.state.get_secret_value()

    async def run() -> T:
        store = open_store(place, StateLimits(timeout_s, timeout_s, settings.state_store.ttl_s))
        try:
            return await work(store)
        finally:
            await store.close()

    try:
        return asyncio.run(run())
    except StateError as error:
        fail(f"{shown_url(place)}: {shown(str(error), 300)}", FAILED)


def _settings(config: Path | None, url: str | None) -> Settings:
    """The settings with `url`, if given, over file and environment."""
    environ = dict(os.environ)
    if url is not None:
        environ["KVROUTE_STATE"] = url
        try:
            check_url(url)
        except ValueError as error:
            fail(f"--state: {error}", MISUSED)
    try:
        settings = load_settings(config, environ)
    except SettingsError as error:
        fail(str(error), MISUSED)
    if settings.state.get_secret_value() == "memory://":
        fail("no state store is set: give --config FILE, --state URL or KVROUTE_STATE", MISUSED)
    return settings


@contextmanager
def _replaced(file: Path) -> Iterator[IO[bytes]]:
    """A new file in its place once all is written; until then, and after a fault, the old one stays."""
    with tempfile.NamedTemporaryFile(dir=file.parent, prefix=f".{file.name}.", delete=False) as opened:
        try:
            yield opened.file
            opened.flush()
            os.fsync(opened.fileno())
            Path(opened.name).replace(file)
        except BaseException:
            Path(opened.name).unlink(missing_ok=True)
            raise


def _meant(name: str, workers: list[Worker]) -> list[Worker]:
    """All ranks of an instance; else the one worker that `instance/rank` names."""
    return [one for one in workers if one.instance == name] or [one for one in workers if _name(one) == name]


def _name(worker: Worker) -> str:
    return f"{worker.instance}/{worker.dp_rank}"
