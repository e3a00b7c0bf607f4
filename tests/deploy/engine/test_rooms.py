from __future__ import annotations

import ast
from pathlib import Path

import deploy.engine

FOLDER = Path(deploy.engine.__file__).parent
OURS = {"app", "router", "store", "engine", "tests", "benchmarks"}
NEEDS_TORCH = {"model.py", "torch_compute.py"}


def test_the_engine_stands_on_the_index_and_itself_alone() -> None:
    for file in FOLDER.glob("*.py"):
        assert not {name.partition(".")[0] for name in _imports(file)} & OURS, file.name


def test_torch_is_imported_where_the_model_is_and_nowhere_else() -> None:
    using = {file.name for file in FOLDER.glob("*.py") if any(name.startswith("torch") for name in _imports(file))}
    assert using == NEEDS_TORCH


def _imports(file: Path) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
    return names
