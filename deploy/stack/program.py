"""What is run for a service: a command line, its environment and its own folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deploy.stack.compose_file import HealthCheck, Service
from deploy.stack.loopback import Loopback

SYSTEM_FOLDERS = "/usr/sbin:/sbin"
"""Where Debian keeps nginx; not on everybody's PATH."""
PACKAGES = {
    "redis-server": "redis-server",
    "redis-cli": "redis-tools",
    "nginx": "nginx libnginx-mod-http-js",
    "prometheus": "prometheus",
    "wget": "wget",
}
"""The Debian packages of the programs that the stack's command lines and health checks name."""


@dataclass(frozen=True)
class Program:
    """A process to run. `log` receives what it writes. `aliases` are further names of its host in the compose file."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str]
    addresses: tuple[str, ...]
    health: HealthCheck
    log: Path
    aliases: tuple[str, ...] = ()


def laid_out(service: Service, loopback: Loopback, folder: Path) -> Program:
    """Copy a service's files, rewritten, to a root of its own in `folder`, and make the folders it writes to."""
    root = folder / service.name
    rewritten = loopback.rewriting(service, root)
    root.mkdir(mode=0o755)
    for mount in service.mounts:
        _copy(mount.source, root / mount.target.lstrip("/"), rewritten)
    for path in service.folders:
        (root / path.lstrip("/")).mkdir(mode=0o755, parents=True, exist_ok=True)
    health = service.health
    return Program(
        service.name,
        tuple(map(rewritten, service.command)),
        {name: rewritten(value) for name, value in service.environment.items()},
        tuple(loopback.addresses(service)),
        HealthCheck(tuple(map(rewritten, health.command)), health.interval_s, health.timeout_s, health.retries),
        folder / f"{service.name}.log",
        service.hosts[1:],
    )


def missing_programs(services: list[Service]) -> dict[str, str]:
    """The programs that this machine lacks, with the Debian packages that bring them."""
    text = "\n".join(" ".join((*service.command, *service.health.command)) for service in services)
    path = surroundings()["PATH"]
    return {name: package for name, package in PACKAGES.items() if name in text and not shutil.which(name, path=path)}


def surroundings() -> dict[str, str]:
    """This process's environment without what would change a service's settings or send its calls to a proxy."""
    dropped = ("KVROUTE_", "GF_", "REDIS")
    kept = {name: text for name, text in os.environ.items() if not name.upper().startswith(dropped)}
    kept = {name: text for name, text in kept.items() if not name.lower().endswith("_proxy")}
    return kept | {"PATH": f"{kept.get('PATH', os.defpath)}:{SYSTEM_FOLDERS}"}


def _copy(source: Path, target: Path, rewritten: Callable[[str], str]) -> None:
    if source.is_dir():
        for inner in sorted(source.iterdir()):
            _copy(inner, target / inner.name, rewritten)
        return
    target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    target.write_text(rewritten(source.read_text()))
