"""docker-compose.yml as a real compose reads it: python -m deploy.stack.compose_check."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from deploy.stack.failure import StackFailed

ROOT = Path(__file__).parents[2]
PROFILES = ("cpu", "gpu")
_LIMIT_S = 60


def main() -> None:
    """Both profiles with .env.example. Exit status 1 with compose's words where it refuses the file."""
    for profile in PROFILES:
        try:
            services = resolved(profile)
        except StackFailed as error:
            sys.exit(str(error))
        print(f"docker-compose.yml, profile {profile}: {', '.join(services)}")


def resolved(profile: str) -> dict[str, dict[str, Any]]:
    """The services of a profile with all variables of .env.example filled in, as compose prints them."""
    printed = _config(profile)
    services: dict[str, dict[str, Any]] = yaml.safe_load(printed)["services"]
    return {name: one for name, one in services.items() if profile in one.get("profiles", [profile])}


def _config(profile: str) -> str:
    """Nothing of the caller's surroundings counts: neither a .env nor variables of the shell."""
    command = ["docker-compose", "--env-file", ".env.example", "config"]
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=kept | {"COMPOSE_PROFILES": profile},
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StackFailed(f"docker-compose could not be run: {error}") from None
    if done.returncode:
        raise StackFailed(f"docker-compose refuses docker-compose.yml with profile {profile}:\n{done.stderr.strip()}")
    return done.stdout


if __name__ == "__main__":
    main()
