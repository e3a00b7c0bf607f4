"""deploy/fleet.example.yaml as the documentation of the settings: every key stands there, with its real default."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from app.instance_settings import InstanceSettings
from app.settings import Settings

EXAMPLE = Path(__file__).parents[2] / "deploy" / "fleet.example.yaml"
OWN_VALUES = {"models", "instances"}
"""Their values are an example's, no defaults."""


def whole_tree() -> dict[str, Any]:
    """The file with its commented keys taken in."""
    text = re.sub(r"^( *)# ((?:  )*[\w./-]+:(?: |$))", r"\1\2", EXAMPLE.read_text(), flags=re.MULTILINE)
    tree = yaml.safe_load(text)
    assert isinstance(tree, dict)
    return tree


def test_every_key_of_every_section_is_in_the_example() -> None:
    tree = whole_tree()
    assert set(tree) == set(Settings.model_fields)
    for name, field in Settings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            assert set(tree[name]) == set(field.annotation.model_fields), name


def test_what_the_example_gives_are_the_defaults() -> None:
    tree = {key: value for key, value in whole_tree().items() if key not in OWN_VALUES}
    assert Settings.model_validate(tree) == Settings()


def test_every_key_of_an_instance_is_in_the_example_and_what_is_commented_is_its_default() -> None:
    active, first = yaml.safe_load(EXAMPLE.read_text())["instances"][0], whole_tree()["instances"][0]
    assert set(first) == set(InstanceSettings.model_fields)
    for key in set(first) - set(active):
        assert first[key] == InstanceSettings.model_fields[key].default, key


def test_the_example_is_valid_with_all_keys_taken_in() -> None:
    settings = Settings.model_validate(whole_tree())
    assert settings.models
    assert settings.instances
