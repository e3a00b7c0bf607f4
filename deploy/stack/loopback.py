"""Where each service is found on this machine, and its texts rewritten to say so."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from deploy.ports import HOST
from deploy.stack.compose_file import Service

_VENV = "/opt/kvroute/bin/"
"""Where our images keep what .venv/bin holds here."""


class Loopback:
    """A port of 127.0.0.1 for every port that a service exposes, from `first_port` on, in order."""

    def __init__(self, services: Sequence[Service], first_port: int) -> None:
        wanted = [(service.name, port) for service in services for port in service.ports]
        self._ports = {key: first_port + place for place, key in enumerate(wanted)}
        self._names = {host: service.name for service in services for host in service.hosts}

    def port(self, service: str, port: int) -> int:
        """The port here of a service's port there."""
        return self._ports[service, port]

    def addresses(self, service: Service) -> list[str]:
        """All of a service's addresses here, in the order in which it exposes them."""
        return [f"{HOST}:{self.port(service.name, port)}" for port in service.ports]

    def rewriting(self, service: Service, root: Path) -> Callable[[str], str]:
        """A function for the texts of one service, whose container paths lie under `root` here.

        Replaced are: `name:port` of any service; `0.0.0.0`, and the service's own ports as whole numbers; the paths
        of its mounts and writable folders; the programs of our images. All in one pass: what was put in stays.
        """
        targets = [mount.target for mount in service.mounts] + list(service.folders)
        pattern = re.compile(
            "|".join(
                (
                    rf"(?<![\w.-])(?P<peer>{_any(self._names)}):(?P<port>\d+)(?!\d)",
                    rf"(?P<listen>\blisten\s+)(?P<bare>{_any(map(str, service.ports))})(?![\w.:])",
                    r"(?P<any>(?<![\d.])0\.0\.0\.0(?![\d.]))",
                    rf"(?<![\w.])(?P<own>{_any(map(str, service.ports))})(?![\w.])",
                    rf"(?P<venv>{re.escape(_VENV)})",
                    rf"(?<![\w/.-])(?P<path>{_any(targets)})(?![\w.-])",
                )
            )
        )

        def replacement(found: re.Match[str]) -> str:
            return self._replacement(found, service, root)

        return lambda text: pattern.sub(replacement, text)

    def _replacement(self, found: re.Match[str], service: Service, root: Path) -> str:
        if found["peer"]:
            known = self._ports.get((self._names[found["peer"]], int(found["port"])))
            return found[0] if known is None else f"{HOST}:{known}"
        if found["listen"]:
            return f"{found['listen']}{HOST}:{self.port(service.name, int(found['bare']))}"
        if found["any"]:
            return HOST
        if found["own"]:
            return str(self.port(service.name, int(found["own"])))
        if found["venv"]:
            return f"{Path(sys.executable).parent}/"
        return f"{root}{found['path']}"


def _any(texts: object) -> str:
    assert isinstance(texts, list | dict | map)
    return "|".join(re.escape(str(text)) for text in sorted(texts, key=len, reverse=True)) or r"(?!)"
