"""Instances and reports that come over HTTP are held to the same rules as the settings file."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.instance_body import FinishedReport, read_finished, read_instance
from app.instance_settings import InstanceSettings
from app.problems import Problem

INSTANCE: dict[str, Any] = {"id": "a/ü", "engine": "sglang", "model": "m", "url": "http://a:8000/"}


def test_the_yaml_form_as_json_is_the_same_instance() -> None:
    assert read_instance(json.dumps(INSTANCE).encode()) == InstanceSettings.model_validate(INSTANCE)
    assert read_instance(json.dumps(INSTANCE | {"weight": 2, "labels": {"zone": "a"}, "events": None}).encode())


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"id": ""}, "id"),
        ({"id": "\ud800"}, None),
        ({"id": "a\x00"}, "id"),
        ({"id": ".."}, "id"),
        ({"engine": "VLLM"}, "engine"),
        ({"url": "a"}, "url"),
        ({"weight": "1"}, "weight"),
        ({"weight": 0}, "weight"),
        ({"labels": {"zone": 1}}, "labels.zone"),
        ({"dp_size": True}, "dp_size"),
        ({"wieght": 1}, "wieght"),
        ({"dp_size": 2, "events": "tcp://a:1", "replay": "tcp://a:2"}, None),
    ],
)
def test_what_does_not_fit_is_a_problem_with_the_field(change: dict[str, Any], field: str | None) -> None:
    with pytest.raises(Problem) as caught:
        read_instance(json.dumps(INSTANCE | change).encode())
    assert caught.value.status in (400, 422)
    assert caught.value.field == field
    caught.value.response()


def test_a_misspelt_key_brings_up_the_right_one() -> None:
    with pytest.raises(Problem, match="weight") as caught:
        read_instance(json.dumps(INSTANCE | {"wieght": 1}).encode())
    assert "did you mean weight" in caught.value.detail


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"null", b"{", b"\xff", b'{"id":"a","id":"b"}', b'{"weight":1e400}', b"{}"]
)
def test_a_body_that_is_no_instance_is_a_problem(body: bytes) -> None:
    with pytest.raises(Problem) as caught:
        read_instance(body)
    assert caught.value.status in (400, 422)


def test_a_url_with_a_password_is_refused_without_showing_it() -> None:
    with pytest.raises(Problem) as caught:
        read_instance(json.dumps(INSTANCE | {"url": "http://u:private-word@a"}).encode())
    assert "private-word" not in str(caught.value.document)


@pytest.mark.parametrize(
    ("body", "report"),
    [
        (b"", FinishedReport()),
        (b"{}", FinishedReport()),
        (b'{"cached_tokens":992,"prompt_tokens":1000,"output_tokens":120}', FinishedReport(992, 1000, 120)),
        (b'{"cached_tokens":null,"usage":{}}', FinishedReport()),
    ],
)
def test_a_report_may_leave_out_what_is_not_known(body: bytes, report: FinishedReport) -> None:
    assert read_finished(body) == report


@pytest.mark.parametrize(
    "body",
    [b"[]", b"5", b'{"cached_tokens":-1}', b'{"cached_tokens":1.0}', b'{"cached_tokens":2,"prompt_tokens":1}', b"NaN"],
)
def test_an_impossible_report_is_a_problem(body: bytes) -> None:
    with pytest.raises(Problem) as caught:
        read_finished(body)
    assert caught.value.status in (400, 422)
