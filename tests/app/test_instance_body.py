"""Instances and reports that come over HTTP are held to the same rules as the settings file."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.instance_body import ErrorReport, FinishedReport, read_finished, read_instance
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


@pytest.mark.parametrize(
    ("error", "report"),
    [
        (None, None),
        (False, None),
        (True, ErrorReport(None)),
        ({"kind": "connect"}, ErrorReport("connect")),
        ({"kind": "timeout", "detail": "no first byte"}, ErrorReport("timeout", None, "no first byte")),
        ({"kind": "status", "status": 503, "detail": None}, ErrorReport("status", 503)),
        ({"kind": "aborted", "status": 200, "later": {}}, ErrorReport("aborted", 200)),
    ],
)
def test_a_report_says_how_the_request_failed(error: object, report: ErrorReport | None) -> None:
    body = {"cached_tokens": 1, "prompt_tokens": 2, "error": error}
    assert read_finished(json.dumps(body).encode()) == FinishedReport(1, 2, None, report)


@pytest.mark.parametrize(
    ("error", "field", "said"),
    [
        ({}, "error.kind", "missing"),
        ({"kind": None}, "error.kind", "str"),
        ({"kind": "unknown"}, "error.kind", "unknown is not one of connect, timeout, status, aborted"),
        ({"kind": "status"}, "error.status", "null is not a number from 100 to 599"),
        ({"kind": "status", "status": 99}, "error.status", "99 is not from 100 to 599"),
        ({"kind": "connect", "status": 600}, "error.status", "600 is not from 100 to 599"),
        ({"kind": "status", "status": "503"}, "error.status", "int"),
        ({"kind": "status", "status": True}, "error.status", "int"),
        ({"kind": "connect", "detail": "x" * 1001}, "error.detail", "1000"),
        ({"kind": "connect", "detail": 5}, "error.detail", "str"),
        ("connect", "error", "got str"),
        (1, "error", "got int"),
        ([], "error", "got array"),
    ],
)
def test_an_error_that_does_not_fit_is_a_problem_with_the_field(error: object, field: str, said: str) -> None:
    with pytest.raises(Problem, match=said) as caught:
        read_finished(json.dumps({"error": error}).encode())
    assert (caught.value.status, caught.value.field) == (422, field)
    caught.value.response()
