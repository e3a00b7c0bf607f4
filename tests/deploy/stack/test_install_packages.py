"""deploy/install_packages.sh where it cannot install: it says what is missing. Where it can, `make test` has run it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "deploy" / "install_packages.sh"


@pytest.fixture
def without_apt(tmp_path: Path) -> str:
    """A PATH with a program called `here`, and no apt-get."""
    for name in ("sh", "id"):
        found = shutil.which(name)
        assert found is not None
        (tmp_path / name).symlink_to(found)
    (tmp_path / "here").touch(mode=0o755)
    return str(tmp_path)


def installed(path: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", str(SCRIPT), *arguments],
        env={"PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_what_is_there_needs_nothing(without_apt: str) -> None:
    done = installed(without_apt, "here")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(("optional", "status"), [((), 1), (("--optional",), 0)])
def test_what_is_missing_is_named_with_how_to_install_it(
    without_apt: str, optional: tuple[str, ...], status: int
) -> None:
    done = installed(without_apt, *optional, "here", "not-here", "nor-here")
    assert done.returncode == status
    assert done.stderr == "missing: not-here nor-here; install with: sudo apt-get install not-here nor-here\n"
