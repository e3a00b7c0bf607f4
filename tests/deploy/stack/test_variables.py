"""Env files and the places of their variables in a compose file."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.stack.compose_file import seconds
from deploy.stack.failure import StackFailed
from deploy.stack.variables import interpolated, read_variables


def test_an_env_file_gives_names_and_values(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("# a comment\n\nA=1\nexport B = x\n".replace(" = ", "=") + "C='quoted # no comment'\nD=a=b\nE=\n")
    assert read_variables(file) == {"A": "1", "B": "x", "C": "quoted # no comment", "D": "a=b", "E": ""}


@pytest.mark.parametrize("line", ["no value", "1A=2", "=x"])
def test_a_line_that_is_none_is_named_with_its_number(tmp_path: Path, line: str) -> None:
    file = tmp_path / ".env"
    file.write_text(f"A=1\n{line}\n")
    with pytest.raises(StackFailed, match="line 2"):
        read_variables(file)


def test_an_env_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(StackFailed, match="nowhere"):
        read_variables(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("$FULL and ${FULL}", "x and x"),
        ("${FULL:-d} ${EMPTY:-d} ${NONE:-d}", "x d d"),
        ("${FULL-d}|${EMPTY-d}|${NONE-d}", "x||d"),
        ("${NONE}|${EMPTY}", "|"),
        ("${FULL:?why}", "x"),
        ("${EMPTY?why}", ""),
        ("$$FULL $${FULL}", "$FULL ${FULL}"),
    ],
)
def test_places_are_filled_as_compose_does(text: str, filled: str) -> None:
    assert interpolated({"k": [text, 1, None]}, {"FULL": "x", "EMPTY": ""}) == {"k": [filled, 1, None]}


@pytest.mark.parametrize("text", ["${NONE:?set it}", "${EMPTY:?set it}", "${NONE?set it}"])
def test_a_variable_that_must_be_set_is_asked_for(text: str) -> None:
    with pytest.raises(StackFailed, match="set it"):
        interpolated(text, {"EMPTY": ""})


@pytest.mark.parametrize("text", ["5$", "${}", "$-"])
def test_a_dollar_sign_alone_is_refused(text: str) -> None:
    with pytest.raises(StackFailed, match=r"\$\$"):
        interpolated(text, {})


@pytest.mark.parametrize(("text", "expected"), [("5s", 5.0), ("1m30s", 90.0), ("500ms", 0.5), ("1h", 3600.0)])
def test_durations_are_read_in_seconds(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "5", "s", "5s x"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no duration"):
        seconds(text)
