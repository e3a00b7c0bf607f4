"""Whoever asks learns that the state store is ill, while it is, and that it is well again."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from app.cli import main
from app.store_failures import FRESH_S, StoreFailures
from store.state import StateError
from tests.support.fleet import fleet
from tests.support.redis_server import RedisServer
from tests.support.service import Running, serving, wait_until


def test_a_failure_is_fresh_for_as_long_as_the_next_try_may_take() -> None:
    now = 100.0
    failures = StoreFailures(lambda: now)
    assert failures.fresh(1.0) is None
    failures.note(StateError("append", "oom"))
    now += FRESH_S + 0.9
    assert failures.fresh(1.0) is not None
    now += 0.2
    assert failures.fresh(1.0) is None


def test_a_redis_that_is_down_shows_in_readyz_and_to_the_doctor_until_it_is_back(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.store_failures.FRESH_S", 4.5)  # the longest pause between two tries, and a little
    times = {"poll_s": 0.05, "call_timeout_s": 0.3}
    with serving(fleet(state=server.url, state_store=times)) as running:
        wait_until(lambda: running.http.get("/readyz").status_code == 200, 10)
        assert store(running) == {"ok": True, "op": None, "reason": None}
        server.stop()
        wait_until(lambda: not store(running)["ok"], 10)
        assert store(running)["reason"] in {"connection", "timeout"}
        assert running.http.get("/readyz").status_code == 200
        told = CliRunner().invoke(main, ["doctor", "--url", str(running.http.base_url)])
        assert (told.exit_code, "the state store fails" in told.stdout) == (1, True)
        server.start()
        wait_until(lambda: store(running)["ok"], 15)


def test_without_a_store_there_is_none_to_be_ill() -> None:
    with serving(fleet()) as running:
        assert running.http.get("/readyz").json()["state_store"] is None


def store(running: Running) -> dict[str, Any]:
    shown: dict[str, Any] = running.http.get("/readyz").json()["state_store"]
    return shown
