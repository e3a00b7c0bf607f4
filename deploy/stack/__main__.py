"""Run the stack of docker-compose.yml (profile cpu) without containers: python -m deploy.stack [--check]."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import yaml
from rich.console import Console
from rich.live import Live

from deploy.ports import LAST_PORT, free_ports, taken_ports
from deploy.stack.compose_file import Service, read_services
from deploy.stack.curls import curls
from deploy.stack.failure import StackFailed
from deploy.stack.loopback import Loopback
from deploy.stack.program import Program, laid_out, missing_programs
from deploy.stack.stack import Stack
from deploy.stack.trial import tried
from deploy.stack.variables import read_variables

ROOT = Path(__file__).parents[2]
PROFILE = "cpu"
START_S = 90.0
_SHOW_S = 0.5


def main() -> None:
    """Exit status 0, 1 with the reason on standard error, or 130 when interrupted before `--check` was through."""
    options = _options()
    try:
        with tempfile.TemporaryDirectory(prefix="kvroute-stack-", ignore_cleanup_errors=True) as folder:
            os.chmod(folder, 0o711)  # started by root, nginx's workers and others run as somebody else
            asyncio.run(_interruptible(options, Path(folder)))
    except* StackFailed as group:
        sys.stderr.write(f"the stack failed: {_only(group)}\n")
        status = 1
    except* asyncio.CancelledError:
        status = 130 if options.check else 0
    else:
        status = 0
    raise SystemExit(status)


async def _interruptible(options: argparse.Namespace, folder: Path) -> None:
    """Ends in an orderly way by SIGINT, SIGTERM and SIGHUP; further ones do not hasten it (it is bounded)."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def interrupt() -> None:
        for number in signals:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
        task.cancel()

    for number in signals:
        loop.add_signal_handler(number, interrupt)
    await _run(options, folder)


async def _run(options: argparse.Namespace, folder: Path) -> None:
    env_file: Path = options.env_file or (ROOT / ".env" if (ROOT / ".env").exists() else ROOT / ".env.example")
    variables = read_variables(env_file)
    services = _runnable(read_services(ROOT / "docker-compose.yml", variables, PROFILE))
    _check_model(variables)
    screen = Console(highlight=False)
    stack = Stack(_programs(services, options.first_port, folder))
    screen.print(f"Variables from {env_file.name}; files and logs in {folder}")
    screen.print("Ports: free ones, or from --first-port on. GATEWAY_PORT etc. are for containers.")
    async with asyncio.TaskGroup() as tasks, stack.running():
        describing = tasks.create_task(_describe(stack, options.describe)) if options.describe else None
        try:
            await (_check if options.check else _stay)(stack, screen, variables)
        finally:
            if describing:
                describing.cancel()


async def _check(stack: Stack, screen: Console, variables: dict[str, str]) -> None:
    await _until_healthy(stack, screen)
    for sentence in await tried(stack.url, variables.get("MODEL", "tiny")):
        screen.print(sentence)
    screen.print("The check passed.")


async def _stay(stack: Stack, screen: Console, variables: dict[str, str]) -> None:
    """Show the table until cancelled: redrawn on a terminal, else printed once all is well."""
    if not screen.is_terminal:
        await _until_healthy(stack, screen)
    model = variables.get("MODEL", "tiny")
    screen.print(f"Model {model!r} at {stack.url('gateway')}/v1. Ctrl-C ends it all.\n")
    screen.out(curls(stack.url, variables), end="\n\n")  # unwrapped, to be copied
    with Live(stack.table(), console=screen, auto_refresh=False) as live:
        while True:
            await asyncio.sleep(_SHOW_S)
            if screen.is_terminal:
                live.update(stack.table(), refresh=True)


async def _until_healthy(stack: Stack, screen: Console) -> None:
    screen.print(f"Waiting until all health checks are green: usually 5 to 15 s, {START_S:g} s at most")
    took_s = await stack.healthy(START_S)
    screen.print(stack.table())
    screen.print(f"All health checks green after {took_s:.1f} s.")


async def _describe(stack: Stack, file: Path) -> None:
    while True:
        stack.describe(file)
        await asyncio.sleep(_SHOW_S / 5)


def _runnable(services: list[Service]) -> list[Service]:
    """All but Grafana where there is none (Debian has no package of it). StackFailed where another is missing."""
    if not shutil.which("grafana"):
        sys.stderr.write("Grafana is left out: there is no grafana on the PATH.\n")
        services = [service for service in services if service.name != "grafana"]
    if missing := missing_programs(services):
        packages = " ".join(sorted(set(missing.values())))
        raise StackFailed(f"{', '.join(missing)} not found; install: sudo sh deploy/install_packages.sh {packages}")
    return services


def _programs(services: list[Service], first_port: int | None, folder: Path) -> list[Program]:
    count = sum(len(service.ports) for service in services)
    if first_port is not None and not 0 < first_port <= LAST_PORT - count + 1:
        raise StackFailed(
            f"--first-port {first_port}: {count} ports are needed, so 1..{LAST_PORT - count + 1} is allowed"
        )
    if first_port is not None and (taken := taken_ports(first_port, count)):
        raise StackFailed(f"--first-port {first_port}: {count} ports are needed; in use: {', '.join(map(str, taken))}")
    try:
        loopback = Loopback(services, first_port if first_port is not None else free_ports(count))
    except OSError as error:
        raise StackFailed(str(error)) from None
    return [laid_out(service, loopback, folder) for service in services]


def _check_model(variables: dict[str, str]) -> None:
    """The engines' name of the model must be the one that the fleet's settings know."""
    file = ROOT / variables.get("FLEET_FILE", "deploy/stack/fleet.yaml")
    named = {str(instance.get("model")) for instance in yaml.safe_load(file.read_text()).get("instances", [])}
    if (model := variables.get("MODEL", "tiny")) not in named:
        raise StackFailed(f"MODEL={model}, but {file} names {', '.join(sorted(named))}: make them equal")


def _only(group: BaseExceptionGroup[StackFailed]) -> BaseException:
    """The one failure inside the groups that the task groups put around it."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m deploy.stack", description=__doc__)
    add: Callable[..., object] = parser.add_argument
    add("--check", action="store_true", help="start, wait for all health checks, send a few requests, end")
    add("--env-file", type=Path, metavar="FILE", help="the variables; .env, else .env.example, when not given")
    add("--first-port", type=int, help="ports from here on, in the table's order; a free run when not given")
    add("--describe", type=Path, metavar="FILE", help="keep pids, addresses and health in FILE, as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
