"""`python -m deploy.stack`: the trial run, how it ends, and what it refuses."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from deploy.stack.__main__ import START_S
from deploy.stack.variables import read_variables
from tests.deploy.stack.running import RunningStack
from tests.support.ports import free_ports

pytestmark = pytest.mark.xdist_group("stack")

ROOT = Path(__file__).parents[3]
_READS = "-all,+dac_read_search"
AS_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
AS_NOBODY += [f"--inh-caps={_READS}", f"--ambient-caps={_READS}", f"--bounding-set={_READS}"]
"""Somebody else who may read what root may, for where this Python lies, and no more."""


def command(*arguments: str, timeout_s: float = 60.0, by: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run it in a folder for temporary files of its own, which must be empty afterwards."""
    with tempfile.TemporaryDirectory() as temporary:
        os.chmod(temporary, 0o777)
        done = subprocess.run(
            [*by, sys.executable, "-m", "deploy.stack", *arguments],
            cwd=ROOT,
            env=os.environ | {"TMPDIR": temporary, "COLUMNS": "200"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert list(Path(temporary).iterdir()) == []
    return done


def test_the_trial_run_ends_well_and_in_time() -> None:
    done = command("--check", timeout_s=START_S + 60)
    assert done.returncode == 0, done.stdout + done.stderr
    took_s = float(done.stdout.partition("All health checks green after ")[2].partition(" s.")[0])
    print(f"all health checks green after {took_s} s")
    assert took_s < START_S
    assert "tokens came from a cache" in done.stdout
    assert "Prometheus scrapes" in done.stdout
    assert "cpu-vllm-0, vllm-0 " in done.stdout
    assert done.stdout.splitlines()[-1] == "The check passed."


def test_secrets_and_names_of_an_env_file_reach_every_service_that_needs_them(tmp_path: Path) -> None:
    """Requests pass with a token, Redis takes the routers' password, engines and fleet agree on another model."""
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text((ROOT / "deploy/stack/fleet.yaml").read_text().replace("tiny", "another"))
    changed = {
        "KVROUTE_TOKEN": "a-token",
        "REDIS_PASSWORD": "a_password-1",
        "MODEL": "another",
        "FLEET_FILE": str(fleet),
    }
    env_file = tmp_path / "env"
    variables = read_variables(ROOT / ".env.example") | changed
    env_file.write_text("".join(f"{name}={value}\n" for name, value in variables.items()))
    done = command("--check", "--env-file", str(env_file), timeout_s=START_S + 60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_model_that_the_fleet_does_not_name_is_refused(tmp_path: Path) -> None:
    env_file = tmp_path / "env"
    env_file.write_text((ROOT / ".env.example").read_text().replace("MODEL=tiny", "MODEL=other"))
    done = command("--check", "--env-file", str(env_file))
    assert done.returncode == 1
    assert "MODEL=other, but" in done.stderr


def test_a_router_that_refuses_its_settings_ends_the_stack_at_once_with_its_message(tmp_path: Path) -> None:
    env_file = tmp_path / "env"
    env_file.write_text((ROOT / ".env.example").read_text().replace("LOG_LEVEL=info", "LOG_LEVEL=loud"))
    began = time.monotonic()
    done = command("--check", "--env-file", str(env_file))
    assert time.monotonic() - began < START_S / 2
    assert done.returncode == 1
    assert "refuses its settings" in done.stderr
    assert done.stderr.count('log.level = "loud"') == 1


@pytest.mark.skipif(os.getuid() != 0, reason="who is not root has tried it so in the test before")
def test_the_trial_run_ends_well_for_somebody_who_is_not_root() -> None:
    done = command("--check", timeout_s=START_S + 60, by=AS_NOBODY)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_everything(how: signal.Signals) -> None:
    with RunningStack() as stack:
        pids = [one["pid"] for one in stack.facts().values()]
        ports = [int(address.rpartition(":")[2]) for one in stack.facts().values() for address in one["addresses"]]
        assert stack.end(how) == 0
        assert [pid for pid in pids if _lives(pid)] == []
        assert [port for port in ports if _answers(port)] == []


def test_ports_that_are_taken_are_named() -> None:
    first = free_ports(40)
    with socket.create_server(("127.0.0.1", first + 3)):
        done = command("--check", "--first-port", str(first))
    assert done.returncode == 1
    assert f"in use: {first + 3}" in done.stderr


@pytest.mark.parametrize("first", ["99999", "0", "65535"])
def test_ports_that_do_not_exist_are_refused_with_those_that_do(first: str) -> None:
    done = command("--check", "--first-port", first)
    assert done.returncode == 1
    assert f"--first-port {first}: " in done.stderr
    assert "is allowed" in done.stderr


@pytest.mark.parametrize("program", ["redis-server", "nginx", "prometheus", "wget"])
def test_a_program_that_is_missing_is_named_with_its_package(program: str, tmp_path: Path) -> None:
    """All other programs of the stack are on the PATH, in a folder of their own."""
    script = f"""
import deploy.stack.program as program
program.SYSTEM_FOLDERS = {str(tmp_path)!r}
from deploy.stack.__main__ import main
main()
"""
    for name in {"redis-server", "redis-cli", "nginx", "prometheus", "wget"} - {program}:
        found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
        assert found is not None
        (tmp_path / name).symlink_to(found)
    done = subprocess.run(
        [sys.executable, "-c", script, "--check"],
        cwd=ROOT,
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert f"{program} not found" in done.stderr
    assert "install_packages.sh" in done.stderr


def _lives(pid: int) -> bool:
    return _succeeds(lambda: os.kill(pid, 0))


def _answers(port: int) -> bool:
    return _succeeds(lambda: socket.create_connection(("127.0.0.1", port), 1.0).close())


def _succeeds(attempt: Callable[[], None]) -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True
