"""What the Dockerfiles do, done here: there is no container engine where the tests run.

The commands of the build stage run in an empty folder that gets what COPY names; then the last stage's ENTRYPOINT and
CMD are started, and its HEALTHCHECK must end well.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deploy.stack.dockerfile import Instruction, Stage, last, stages
from tests.support.ports import free_ports

pytestmark = pytest.mark.xdist_group("stack")  # not beside the tests that wait for a whole stack

ROOT = Path(__file__).parents[3]
BUILD_S, START_S = 400.0, 40.0
FAST_BUILD = {"SKBUILD_CMAKE_BUILD_TYPE": "Debug"}
"""The native core without optimisation: what it does is the same, and its speed is not asked for here."""


@pytest.mark.parametrize("image", ["router", "engine"])
def test_an_image_is_built_starts_and_is_healthy(image: str, tmp_path: Path) -> None:
    build, final = stages((ROOT / f"deploy/docker/{image}.Dockerfile").read_text())
    _build(build, tmp_path)
    installed = {path.name for path in (tmp_path / "opt/kvroute/lib").glob("python*/site-packages/*")}
    assert not {"pip", "cmake", "ninja", "nanobind", "scikit_build_core"} & installed
    assert "torch" not in installed
    cores = list((tmp_path / "opt/kvroute/lib").glob("python*/site-packages/index/_core.*.so"))
    assert bool(cores) is (image == "router")
    _copy(final, tmp_path)
    _start(final, tmp_path)


def _build(stage: Stage, folder: Path) -> None:
    """`/` is `folder`. The Python that makes the venv is the tests' own, whatever the image's is."""
    (folder / "src").mkdir()
    _copy(stage, folder)
    arguments = dict(one.argument.split("=", 1) for one in stage if one.name == "ARG")
    for run in (one.argument for one in stage if one.name == "RUN"):
        if run.startswith("apt-get "):
            continue  # the compiler here is the machine's own
        command = (
            _here(run, folder).replace("python -m venv", f"{sys.executable} -m venv").replace("--no-cache-dir ", "")
        )
        done = subprocess.run(
            ["sh", "-ec", command],
            cwd=folder / "src",
            env=_surroundings() | FAST_BUILD | arguments,
            capture_output=True,
            text=True,
            timeout=BUILD_S,
            check=False,
        )
        assert done.returncode == 0, f"{run}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def _copy(stage: Stage, folder: Path) -> None:
    workdir = folder
    for one in stage:
        if one.name == "WORKDIR":
            workdir = folder / one.argument.lstrip("/")
        elif one.name == "COPY" and not one.argument.startswith("--from"):
            *sources, target = one.argument.split()
            for source in sources:
                _copy_one(ROOT / source, workdir / (source if target == "./" else target))


def _copy_one(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    else:
        shutil.copy(source, target)


def _start(stage: Stage, folder: Path) -> None:
    fleet = folder / "etc/kvroute/fleet.yaml"
    fleet.parent.mkdir(parents=True)
    fleet.write_text("instances: []\n")
    ports = _ports(stage)
    command = [_here(word, folder, ports) for word in (*_words(stage, "ENTRYPOINT"), *_words(stage, "CMD"))]
    check = [_here(word, folder, ports) for word in _health(stage)]
    workdir = last(stage, "WORKDIR")
    where = folder / workdir.argument.lstrip("/") if workdir else folder
    with subprocess.Popen(command, cwd=where, env=_surroundings()) as process:
        try:
            deadline = time.monotonic() + START_S
            while subprocess.run(check, cwd=where, capture_output=True, timeout=20, check=False).returncode:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)
        finally:
            process.terminate()
            process.wait(20)


def _ports(stage: Stage) -> dict[str, str]:
    exposed = last(stage, "EXPOSE")
    assert exposed is not None
    first = free_ports(3)
    return {port: str(first + place) for place, port in enumerate(exposed.argument.split())}


def _here(text: str, folder: Path, ports: dict[str, str] | None = None) -> str:
    """Paths and ports of the image as they are here; it listens on the loopback alone."""
    text = re.sub(r"/(opt|etc)/kvroute", rf"{folder}/\1/kvroute", text).replace("0.0.0.0", "127.0.0.1")
    return re.sub(r"\b\d{4}\b", lambda found: (ports or {}).get(found[0], found[0]), text)


def _words(stage: Stage, name: str) -> tuple[str, ...]:
    found = last(stage, name)
    assert found is not None
    assert found.words
    return found.words


def _health(stage: Stage) -> tuple[str, ...]:
    found = last(stage, "HEALTHCHECK")
    assert found is not None
    words = Instruction("CMD", found.argument.partition("CMD ")[2]).words
    assert words
    return words


def _surroundings() -> dict[str, str]:
    """What pip needs, and nothing that leads to this checkout."""
    dropped = ("PYTHON", "KVROUTE", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
