"""Logs: one readable line per entry, whatever is in it."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable

import pytest
import structlog

from app.logs import Repeats, configure_logs
from app.settings import LogSettings

Lines = Callable[[], list[dict[str, object]]]
log = structlog.stdlib.get_logger("kvroute.test")


def test_an_entry_begins_with_time_level_and_event(log_lines: Lines) -> None:
    log.info("worker cleared", instance="a", seq=5)
    (entry,) = log_lines()
    assert list(entry)[:3] == ["time", "level", "event"]
    assert str(entry["time"]).endswith("Z")
    assert (entry["level"], entry["event"], entry["instance"], entry["seq"]) == ("info", "worker cleared", "a", 5)


@pytest.mark.parametrize("form", ["json", "text"])
def test_nothing_that_is_logged_breaks_the_log(log_stream: io.StringIO, form: str) -> None:
    configure_logs(LogSettings.model_validate({"format": form}), log_stream)
    hostile = {"a": "\ud800\n", "b": float("nan"), "c": 10**6000, "d": b"\xff", "e": {"\udfff": [object()]}, "f": None}
    log.info("\udc80 event\nforged", **hostile)
    try:
        int("\ud800")
    except ValueError:
        log.exception("failed", a=1)
    text = log_stream.getvalue()
    text.encode()
    assert "Logging error" not in text
    assert "ValueError" in text
    assert "\nforged" not in text
    if form == "json":
        assert [json.loads(line, parse_constant=pytest.fail)["level"] for line in text.splitlines()] == [
            "info",
            "error",
        ]


def test_tracebacks_do_not_show_local_variables(log_stream: io.StringIO) -> None:
    configure_logs(LogSettings(format="text"), log_stream)
    prompt = "private" + "-word"
    try:
        prompt.index("?")
    except ValueError:
        log.exception("failed")
    assert "private-word" not in log_stream.getvalue()


def test_uvicorn_and_warnings_speak_the_same_language(log_lines: Lines) -> None:
    logging.getLogger("uvicorn.error").info("started %s", 5)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", stacklevel=1)
    first, second = log_lines()
    assert (first["event"], first["logger"], first["level"]) == ("started 5", "uvicorn.error", "info")
    assert "old" in str(second["event"])


def test_the_level_holds_for_every_logger_and_the_access_log_is_off_unless_asked_for(log_stream: io.StringIO) -> None:
    configure_logs(LogSettings(level="warning"), log_stream)
    log.info("quiet")
    logging.getLogger("uvicorn.error").info("quiet")
    configure_logs(LogSettings(level="info"), log_stream)
    logging.getLogger("uvicorn.access").info("quiet")
    logging.getLogger("httpx").info("quiet")
    assert log_stream.getvalue() == ""
    configure_logs(LogSettings(access=True), log_stream)
    logging.getLogger("uvicorn.access").info("GET /")
    assert "GET /" in log_stream.getvalue()


def test_repeats_lets_one_per_key_and_interval_through_and_counts_the_rest() -> None:
    now = 0.0
    repeats = Repeats(10.0, clock=lambda: now)
    assert [repeats.due("a"), repeats.due("a"), repeats.due("b"), repeats.due("a")] == [0, None, 0, None]
    now = 10.0
    assert [repeats.due("a"), repeats.due("a")] == [2, None]


def test_repeats_forgets_the_longest_unused_keys() -> None:
    repeats = Repeats(10.0, clock=lambda: 0.0, max_keys=2)
    for key in ("a", "b", "c"):
        assert repeats.due(key) == 0
    assert repeats.due("c") is None
    assert repeats.due("a") == 0
