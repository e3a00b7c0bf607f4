"""docs/settings.md: it is what the models say, and what it says of a setting is how the setting is read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from app.cli import main
from app.instance_settings import InstanceSettings
from app.settings import Settings
from app.settings_file import SettingsError, load_settings
from app.settings_page import Row, section_rows, settings_page
from app.settings_text import inner_model

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def shown_rows() -> dict[str, Row]:
    """The tables of the file in docs/, by key."""
    lines = re.findall(r"^\| (`[a-zA-Z_.\[\]]+` \| .*) \|$", PAGE.read_text(), re.MULTILINE)
    cells = [line.split(" | ") for line in lines]
    rows = [
        Row(key.strip("`"), variable.strip("` ") or None, *others) for key, variable, *others in cells if others[3:]
    ]
    return {row.key: row for row in rows}


ROWS = shown_rows()
RANGE = re.compile(r"(?:above )?([\d.e-]+?)(?:\.\.|, up to )([\d.e-]+)(?:, or null)?")
RANGES = [key for key, row in ROWS.items() if RANGE.fullmatch(row.allowed) and row.variable]


def read(variable: str, text: str) -> Settings:
    return load_settings(None, {variable: text})


def value_at(settings: Settings, key: str) -> object:
    here: object = settings
    for part in key.split("."):
        here = getattr(here, part)
    return here


def test_the_page_is_what_the_models_say() -> None:
    assert PAGE.read_text() == settings_page(), "write it again: kvroute settings >docs/settings.md"


def test_the_command_prints_the_page() -> None:
    printed = CliRunner().invoke(main, ["settings"])
    assert printed.exit_code == 0
    assert printed.stdout == settings_page()


def test_every_setting_is_on_the_page() -> None:
    def keys(model: type[BaseModel], before: str) -> Iterator[str]:
        for name, field in model.model_fields.items():
            direct = isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
            inner = inner_model(field.annotation) if direct and not before else None
            yield from keys(inner, f"{name}.") if inner else [before + name]

    instance = {f"instances[].{name}" for name in InstanceSettings.model_fields}
    assert set(ROWS) == {*keys(Settings, ""), "models.NAME.hash", *instance} - {"models", "instances"}


@pytest.mark.parametrize("key", [key for key, row in ROWS.items() if row.variable])
def test_a_variable_with_the_default_that_is_shown_changes_nothing(key: str) -> None:
    row = ROWS[key]
    assert row.variable
    settings = read(row.variable, row.default.strip("`"))
    assert settings == Settings()
    section = key.split(".", maxsplit=1)[0]
    assert section in settings.model_fields_set


@pytest.mark.parametrize("key", RANGES)
def test_the_ends_of_a_range_are_taken_and_what_lies_beyond_is_not(key: str) -> None:
    row = ROWS[key]
    found = RANGE.fullmatch(row.allowed)
    assert found
    assert row.variable
    low, high = found.groups()
    assert value_at(read(row.variable, high), key) == float(high)
    refused = ["-1", f"{int(high) + 1}"]
    if row.allowed.startswith("above"):
        refused.append(low)
    else:
        assert value_at(read(row.variable, low), key) == float(low)
    for text in refused:
        with pytest.raises(SettingsError, match=row.variable):
            read(row.variable, text)


@pytest.mark.parametrize("key", ["hash.algorithm", "hash.policy", "hash.verify", "log.level", "log.format"])
def test_each_word_that_is_shown_is_taken(key: str) -> None:
    row = ROWS[key]
    assert row.variable
    words = re.split(r", | or ", row.allowed)
    assert len(words) > 1
    for word in words:
        given = {row.variable: word} | ({"KVROUTE_HASH__SEED": "0"} if word.startswith("xxhash") else {})
        assert value_at(load_settings(None, given), key) == word


def test_a_unit_stands_at_every_number_but_factors() -> None:
    bare = {key for key, row in ROWS.items() if not row.unit and RANGE.fullmatch(row.allowed)}
    assert bare == {"router.guard_multiple", "instances[].weight"}


def test_elements_of_lists_come_from_the_environment_only_whole() -> None:
    assert {row.variable for row in section_rows("instances", InstanceSettings)} == {None}
    assert "`KVROUTE_INSTANCES`, as a JSON list" in PAGE.read_text()
