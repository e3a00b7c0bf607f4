"""The project's frame: documents, commands, lock file and container files agree with what is there."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from app.fleet_rows import FleetRows
from app.metrics import Metrics
from app.settings_file import load_settings

ROOT = Path(__file__).parent.parent
MAX_FILE_BYTES = 1_000_000
MAX_GOLDEN_BYTES = 5_000_000


def tracked_files() -> list[Path]:
    """Files that are, or are about to be, part of the repository; skips outside a git checkout."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listing = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [path for name in listing.split("\0") if name and (path := ROOT / name).is_file()]


def text_of(name: str) -> str:
    return (ROOT / name).read_text()


def documents() -> list[str]:
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    return sorted(str(path.relative_to(ROOT)) for path in found)


def headings(document: Path) -> set[str]:
    """The anchors that a rendered document offers: its headings in lower case, spaces as hyphens."""
    titles = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-") for title in titles}


def locked_versions() -> dict[str, Version]:
    lines = text_of("requirements.lock").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(pin.name): Version(str(pin.specifier).removeprefix("==")) for pin in pins}


def wanted() -> list[Requirement]:
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    return [Requirement(text) for text in [*project["dependencies"], *project["optional-dependencies"]["dev"]]]


@pytest.mark.parametrize("requirement", wanted(), ids=lambda requirement: requirement.name)
def test_the_lock_holds_a_version_that_pyproject_allows(requirement: Requirement) -> None:
    version = locked_versions()[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(version)


def test_the_lock_names_exact_versions_and_nothing_else() -> None:
    for line in text_of("requirements.lock").splitlines():
        assert re.fullmatch(r"[a-z0-9-]+==[0-9a-z.+]+( ; [^@/]+)?", line), line


@pytest.mark.parametrize(
    "target", ["install", "run", "demo", "stack", "test", "check", "check-compose", "bench", "clean", "lock"]
)
def test_make_knows_the_command(target: str) -> None:
    assert re.search(rf"^{target}:", text_of("Makefile"), re.MULTILINE)


def test_the_ci_entry_is_executable() -> None:
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_every_decision_is_listed_in_the_index_of_decisions() -> None:
    folder = ROOT / "docs" / "adr"
    linked = set(re.findall(r"\]\((\d{4}-[a-z0-9-]+\.md)\)", (folder / "README.md").read_text()))
    assert linked == {path.name for path in folder.glob("[0-9]*.md")}


@pytest.mark.parametrize("document", documents())
def test_relative_links_lead_somewhere(document: str) -> None:
    path = ROOT / document
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", path.read_text()):
        linked = path.parent / target if target else path
        assert linked.exists(), target
        assert not anchor or anchor in headings(linked), anchor


def test_every_metric_is_explained_and_no_other() -> None:
    metrics = Metrics()
    metrics.watch(lambda: FleetRows([], {}, 0))
    families = [family for family in metrics.registry.collect() if family.name.startswith("kvroute_")]
    defined = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    assert set(re.findall(r"^\| `(kvroute_\w+)`", text_of("docs/metrics.md"), re.MULTILINE)) == defined


def test_the_map_names_files_that_exist() -> None:
    named = re.findall(
        r"`((?:app|router|index|engine|store|deploy|tests|benchmarks|docs)/[^`\s]*)`", text_of("ARCHITECTURE.md")
    )
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("document", ["README.md", "deploy/fleet.example.yaml"])
def test_the_settings_shown_to_users_are_valid(document: str, tmp_path: Path) -> None:
    text = text_of(document)
    blocks = [text] if document.endswith(".yaml") else re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert blocks
    for number, block in enumerate(blocks):
        file = tmp_path / f"{number}.yaml"
        file.write_text(block)
        assert load_settings(file, {}).instances


def test_no_file_is_larger_than_a_megabyte() -> None:
    assert [path for path in tracked_files() if path.stat().st_size > MAX_FILE_BYTES] == []


def test_golden_data_stays_small() -> None:
    files = (ROOT / "tests" / "golden").rglob("*")
    assert sum(path.stat().st_size for path in files if path.is_file()) <= MAX_GOLDEN_BYTES
