"""The services of a compose file, as far as running them without containers needs them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from deploy.stack.dockerfile import last, stages
from deploy.stack.failure import StackFailed
from deploy.stack.variables import interpolated

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_OF_IMAGE = {"grafana": ("grafana", "server", "--homepath=/usr/share/grafana")}
"""What images run whose command the compose file leaves to them."""


@dataclass(frozen=True)
class Mount:
    """A file or folder of the repository and where the container sees it."""

    source: Path
    target: str


@dataclass(frozen=True)
class HealthCheck:
    """A command that ends with status 0 when the service is well."""

    command: tuple[str, ...]
    interval_s: float
    timeout_s: float
    retries: int


@dataclass(frozen=True)
class Service:
    """One service. `hosts` are its names in the networks, `folders` the paths that it may write to."""

    name: str
    hosts: tuple[str, ...]
    command: tuple[str, ...]
    environment: dict[str, str]
    mounts: tuple[Mount, ...]
    folders: tuple[str, ...]
    ports: tuple[int, ...]
    health: HealthCheck


def read_services(file: Path, variables: Mapping[str, str], profile: str) -> list[Service]:
    """The services that `profile` starts, in the file's order. StackFailed says what is wrong with the file."""
    try:
        tree = interpolated(yaml.safe_load(file.read_text()), variables)
    except (OSError, yaml.YAMLError) as error:
        raise StackFailed(f"{file}: {error}") from None
    assert isinstance(tree, dict)
    services: dict[str, dict[str, Any]] = tree["services"]
    volumes = set(tree.get("volumes", {}))
    return [
        _service(name, service, file.parent, volumes)
        for name, service in services.items()
        if profile in service.get("profiles", [profile])
    ]


def seconds(text: str) -> float:
    """A compose duration like 1m30s in seconds. ValueError for another text."""
    parts = _DURATION.findall(text)
    if "".join(number + unit for number, unit in parts) != text or not parts:
        raise ValueError(f"{text!r} is no duration like 1m30s")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def _service(name: str, service: dict[str, Any], root: Path, volumes: set[str]) -> Service:
    mounts, folders = [], [path.partition(":")[0] for path in service.get("tmpfs", [])]
    for volume in service.get("volumes", []):
        source, target = volume.split(":")[:2]
        if source in volumes:
            folders.append(target)
        else:
            mounts.append(Mount(root / source, target))
    networks = service.get("networks", {})
    joined = [options or {} for options in networks.values()] if isinstance(networks, dict) else []
    return Service(
        name=name,
        hosts=(name, *(alias for options in joined for alias in options.get("aliases", []))),
        command=_command(name, service, root),
        environment={key: "" if value is None else str(value) for key, value in service.get("environment", {}).items()},
        mounts=tuple(mounts),
        folders=tuple(folders),
        ports=tuple(int(port) for port in service["expose"]),
        health=_health(service["healthcheck"]),
    )


def _command(name: str, service: dict[str, Any], root: Path) -> tuple[str, ...]:
    """What the container runs: entrypoint and command, from the Dockerfile where the service has none."""
    entrypoint, command = service.get("entrypoint"), service.get("command")
    if "build" in service and (entrypoint is None or command is None):
        final = stages((root / service["build"]["dockerfile"]).read_text())[-1]
        of_image = {key: found.words if (found := last(final, key)) else () for key in ("ENTRYPOINT", "CMD")}
        command = of_image["CMD"] if command is None and entrypoint is None else command
        entrypoint = of_image["ENTRYPOINT"] if entrypoint is None else entrypoint
    return (*(entrypoint or ()), *(command or ())) or _OF_IMAGE[name]


def _health(check: dict[str, Any]) -> HealthCheck:
    kind, *words = check["test"]
    command = ("sh", "-c", *words) if kind == "CMD-SHELL" else tuple(words)
    return HealthCheck(command, seconds(check["interval"]), seconds(check["timeout"]), int(check["retries"]))
