"""The command line: kvroute serve | version | config-check | settings | doctor | explain | state."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import structlog
import typer
from rich.text import Text

from app.asking_kvroute import Kvroute, NoAnswer
from app.cli_state import state_commands
from app.doctor import examine, table
from app.explain import UnreadableTokens, candidates_table, headline, read_tokens
from app.logs import configure_logs
from app.settings import Settings
from app.settings_file import SettingsError, load_settings
from app.settings_page import settings_page
from app.settings_summary import doubts, instances_table, summary
from app.shown import encodable, shown
from app.terminal import console, fail
from app.version import VERSION
from index.native import FAULT

BAD_SETTINGS = 2

_log = structlog.stdlib.get_logger("kvroute.settings")

main = typer.Typer(
    help="A cache-aware router for vLLM and SGLang.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
main.add_typer(state_commands, name="state")

Url = Annotated[str, typer.Option("--url", help="where kvroute runs")]
Token = Annotated[str | None, typer.Option("--token", envvar="KVROUTE_AUTH__TOKEN", help="bearer token, if one is set")]
Timeout = Annotated[float, typer.Option("--timeout", min=0.1, max=600.0, help="seconds for each answer")]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(VERSION)
        raise typer.Exit


@main.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A cache-aware router for vLLM and SGLang."""


@main.command()
def serve(
    config: Annotated[Path | None, typer.Option("--config", envvar="KVROUTE_CONFIG", help="settings file")] = None,
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="port to listen on")] = 8900,
) -> None:
    """Run the router. SIGTERM and SIGINT stop it after the requests in flight."""
    settings = _startable(config)
    configure_logs(settings.log)
    for doubt in doubts(settings, os.environ):
        _log.warning("settings", doubt=doubt)
    from app.serving import run  # noqa: PLC0415 - the other commands need not wait for the whole application

    if not run(settings, host, port):
        raise typer.Exit(3)


@main.command()
def version() -> None:
    """Print the version."""
    typer.echo(VERSION)


@main.command("config-check")
def config_check(file: Annotated[Path, typer.Argument(help="settings file")]) -> None:
    """Check a settings file, with the environment over it. Exit status 0 or 2."""
    settings = _startable(file)
    out = console()
    out.print(summary(settings))
    out.print(instances_table(settings))
    for doubt in doubts(settings, os.environ):
        out.print(Text(doubt, style="yellow"))


@main.command("settings")
def print_settings() -> None:
    """Print every setting with its default, its unit and what is allowed, as Markdown."""
    typer.echo(settings_page(), nl=False)


@main.command()
def doctor(url: Url = "http://127.0.0.1:8900", token: Token = None, timeout: Timeout = 5.0) -> None:
    """Ask a running kvroute how it and its engines are. Exit status 1 when something is wrong."""
    try:
        with Kvroute(url, token, timeout) as kvroute:
            found = examine(kvroute)
    except NoAnswer as error:
        fail(str(error), 1)
    out = console()
    if found.workers:
        out.print(table(found))
    for fault in found.faults:
        out.print(Text(fault, style="red"))
    out.print(Text(found.verdict, style="green" if found.healthy else "red"))
    if not found.healthy:
        raise typer.Exit(1)


@main.command()
def explain(  # noqa: PLR0917 - options, given by name
    model: Annotated[str, typer.Option(help="model or adapter")],
    url: Url = "http://127.0.0.1:8900",
    tokens: Annotated[str | None, typer.Option(help="file with token ids, - for standard input")] = None,
    prompt: Annotated[str | None, typer.Option(help="text")] = None,
    lora: Annotated[str | None, typer.Option(help="adapter, if the model is the base model")] = None,
    cache_salt: Annotated[str | None, typer.Option(help="cache salt")] = None,
    extra_key: Annotated[str | None, typer.Option(help="SGLang namespace")] = None,
    session_id: Annotated[str | None, typer.Option(help="session, for affinity")] = None,
    token: Token = None,
    timeout: Timeout = 10.0,
) -> None:
    """Show where a prompt would go and why, without leaving a trace. Exit status 1 when it would go nowhere."""
    if (tokens is None) == (prompt is None):
        fail("give either --tokens or --prompt", 2)
    question: dict[str, object] = (
        {"prompt": encodable(prompt)} if prompt is not None else {"token_ids": _tokens(tokens)}
    )
    question |= {"model": encodable(model), "lora": lora, "cache_salt": cache_salt, "extra_key": extra_key}
    question |= {"session_id": session_id, "dry_run": True, "explain": True}
    answer = _routed(url, token, timeout, question)
    out = console()
    out.print(Text(headline(answer)))
    if answer.get("detail"):
        out.print(Text(shown(answer["detail"], 2000)))
    out.print(candidates_table(answer))


def _routed(url: str, token: str | None, timeout_s: float, question: dict[str, object]) -> dict[str, object]:
    try:
        with Kvroute(url, token, timeout_s) as kvroute:
            status, answer = kvroute.post("/route", question)
    except NoAnswer as error:
        fail(str(error), 1)
    if status != 200:
        fail(f"{status}: {shown(answer.get('detail'), 2000)}", 1)
    return answer


def _startable(file: Path | None) -> Settings:
    """Settings with which the router starts, as far as can be told without starting it."""
    try:
        settings = load_settings(file, os.environ)
    except SettingsError as error:
        fail(str(error), BAD_SETTINGS)
    if FAULT is not None:
        fail(str(FAULT), BAD_SETTINGS)
    return settings


def _tokens(source: str | None) -> list[int]:
    try:
        if source is None or source == "-":
            return read_tokens(sys.stdin)
        with Path(source).open(encoding="utf-8") as file:
            return read_tokens(file)
    except OSError as error:
        fail(f"{shown(source)} cannot be read: {error.strerror}", 2)
    except UnreadableTokens as error:
        fail(str(error), 2)


if __name__ == "__main__":
    main()
