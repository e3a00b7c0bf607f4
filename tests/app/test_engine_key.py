"""The key of an engine: read from its file when it changes, sent with every question, and shown to nobody."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.cli import main
from app.engine_key import EngineKey
from index.worker import EngineKind
from tests.support.engine_events import prompt, sglang_stored, vllm_stored
from tests.support.fake_engine import FakeEngine
from tests.support.fleet import fleet, instance, publish
from tests.support.publisher import Publisher
from tests.support.redis_server import RedisServer
from tests.support.service import Running, serving, wait_until

KEY = "k-sEcrEt-1"
runner = CliRunner()


def replaced(file: Path, text: str) -> None:
    """As tools write secrets: another file under the name."""
    other = file.with_suffix(".new")
    other.write_text(text)
    other.replace(file)


# The file


def test_a_file_is_read_when_asked_and_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"\ufeff  {KEY}\r\n")
    key = EngineKey(None, str(file))
    assert (key.current(), key.fault) == (KEY, None)
    replaced(file, "k-2\n")
    assert key.current() == "k-2"
    link = tmp_path / "link"
    link.symlink_to(file)
    key = EngineKey(None, str(link))
    assert key.current() == "k-2"
    other = tmp_path / "other"
    other.write_text("k-3")
    replacement = tmp_path / "replacement"
    replacement.symlink_to(other)
    replacement.replace(link)
    assert key.current() == "k-3"


def test_what_cannot_be_read_is_a_fault_in_words_and_the_last_key_is_used_on(tmp_path: Path) -> None:
    file = tmp_path / "key"
    key = EngineKey(None, str(file))
    assert key.current() is None
    assert f"api_key_file {file} cannot be read: No such file" in (key.fault or "")
    file.write_text(KEY)
    assert (key.current(), key.fault) == (KEY, None)
    for content in (b"", b"\n", b"two words", b"two\nlines", b"\xff\xfe", b"x" * 1025, b"a\x00b", "größe".encode()):
        replaced(file, content.decode("latin-1")) if content != b"\xff\xfe" else file.write_bytes(content)
        assert key.current() == KEY
        assert "does not hold a key alone" in (key.fault or "")
        assert "two" not in (key.fault or "").removeprefix(f"api_key_file {file}")
    file.unlink()
    os.mkfifo(file)  # opening it would wait for ever
    assert key.current() == KEY
    assert "is not a regular file" in (key.fault or "")
    file.unlink()
    file.mkdir()
    assert key.current() == KEY
    file.rmdir()
    file.write_text("k-2")
    assert (key.current(), key.fault) == ("k-2", None)


# Asking


@pytest.mark.parametrize("kind", EngineKind)
@pytest.mark.parametrize("way", ["api_key", "api_key_file"])
def test_every_question_is_asked_with_the_key(kind: EngineKind, way: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY + "\n")
    own: dict[str, Any] = {way: {"api_key": KEY, "api_key_file": str(tmp_path / "key")}[way]}
    with (
        Publisher() as publisher,
        FakeEngine(kind, api_key=KEY, guarded=("/tokenize", "/metrics")) as engine,
    ):
        engine.events, engine.replay = publisher.events, publisher.replay
        with serving(fleet(instance("a", server=engine, **own))) as run:
            publish(run, "a", publisher, (vllm_stored if kind is EngineKind.VLLM else sglang_stored)(prompt(1)))
            answer = run.http.post("/route", json={"model": "m", "prompt": "hello", "explain": True}).json()
            assert answer["prompt_tokens"] == 6
            wait_until(lambda: bool(run.service.around.fleet.get("a").workers[0].load), 5)  # type: ignore[union-attr]
            shown = run.instance("a")
            assert (shown["unauthorized"], shown["reachable"]) == (False, True)
            assert engine.keys == {f"Bearer {KEY}"}


@pytest.mark.parametrize("kind", EngineKind)
def test_a_key_that_changes_takes_effect_and_what_was_known_stays_meanwhile(kind: EngineKind, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(KEY)
    with Publisher() as publisher, FakeEngine(kind, api_key=KEY, adapters={"sql": "/loras/sql"}, dynamo=True) as engine:
        engine.events, engine.replay = publisher.events, publisher.replay
        with serving(fleet(instance("a", server=engine, api_key_file=str(file)))) as run:
            publish(run, "a", publisher, (vllm_stored if kind is EngineKind.VLLM else sglang_stored)(prompt(1)))
            wait_until(lambda: run.instance("a")["adapters"] == {"sql": "/loras/sql"}, 5)
            engine.api_key = "k-2"
            wait_until(lambda: run.instance("a")["unauthorized"], 5)
            shown = run.instance("a")
            assert "its api_key is refused" in shown["warning"]
            assert (shown["adapters"], shown["reachable"]) == ({"sql": "/loras/sql"}, True)
            assert shown["workers"][0]["events"] == publisher.events
            assert run.candidates(prompt(1), model="m")["a"]["matched_tokens"] == 64
            told = runner.invoke(main, ["doctor", "--url", run.url])
            assert told.exit_code == 1
            assert "wants a key that it does not get" in told.stdout
            replaced(file, "k-2")
            wait_until(lambda: not run.instance("a")["unauthorized"], 5)
            assert run.instance("a")["warning"] is None
            file.unlink()
            wait_until(lambda: "cannot be read" in (run.instance("a")["warning"] or ""), 5)
            assert run.instance("a")["reachable"] is True


# A secret


def test_a_key_is_shown_nowhere(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    settings = fleet(instance("a", api_key=KEY), log={"level": "debug", "access": True})
    file = tmp_path / "fleet.yaml"
    file.write_text(json.dumps(settings))
    checked = runner.invoke(main, ["config-check", str(file)])
    assert checked.exit_code == 0
    with FakeEngine(EngineKind.SGLANG, api_key="another") as engine, serving(settings) as run:
        body = instance("b", server=engine, api_key=KEY)
        answers = [run.http.post("/instances", json=body), run.http.post("/instances", json=body)]
        assert [one.status_code for one in answers] == [201, 200]
        for key in ("other", None):
            answers.append(run.http.post("/instances", json=body | {"api_key": key}))
            assert (answers[-1].status_code, answers[-1].json()["field"]) == (409, "id")
        wrong: list[dict[str, Any]] = [
            {"api_key": KEY + " "},
            {"api_key": KEY + "ö"},
            {"api_key": KEY + "\n"},
            {"api_key": [KEY]},
            {"api_key": {KEY: KEY}},
            {"api_key": KEY * 200},
            {"api_key": ""},
            {"api_key": 5},
            {"api_key": KEY, "api_key_file": "/run/key"},
            {"api_key": KEY, "weight": -1},
            {"api_key": KEY, "events": ["tcp://a:1", "tcp://a:1"]},
        ]
        for change in wrong:
            answers.append(run.http.post("/instances", json=body | {"id": "c"} | change))
            assert answers[-1].status_code == 422, change
        wait_until(lambda: run.instance("b")["unauthorized"], 5)
        answers += [run.http.get(path) for path in ("/instances", "/instances/b", "/metrics", "/openapi.json")]
        answers.append(run.http.post("/route", json={"model": "m", "prompt": "x", "explain": True}))
        shown = [one.text for one in answers] + [checked.output, repr(run.service.settings), str(run.service.settings)]
    assert not [text for text in shown if KEY in text]
    assert KEY not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    "text",
    [
        f'[{{"id": "a", "api_key": "{KEY}",}}]',
        f'["{KEY}"]',
        f'[{{"id": "a", "engine": "vllm", "model": "m", "url": "http://a", "api_key": "{KEY} "}}]',
        f'[{{"id": "a", "engine": "vllm", "model": "m", "url": "http://a", "api_key": ["{KEY}"]}}]',
        f'{{"api_key": "{KEY}"}}',
    ],
)
def test_settings_at_fault_do_not_repeat_a_key(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("log: {level: info}")
    monkeypatch.setenv("KVROUTE_INSTANCES", text)
    refused = runner.invoke(main, ["config-check", str(file)])
    assert (refused.exit_code, KEY in refused.output) == (2, False)
    assert "KVROUTE_INSTANCES" in refused.output


# Replicas


@pytest.fixture
def serve(server: RedisServer, stack: ExitStack) -> Callable[[], Running]:
    return lambda: stack.enter_context(serving(fleet(state=server.url, state_store={"poll_s": 0.05})))


def test_a_key_given_over_http_is_used_by_every_replica_and_after_a_restart_and_is_not_exported(
    serve: Callable[[], Running], server: RedisServer, tmp_path: Path
) -> None:
    with FakeEngine(EngineKind.SGLANG, api_key=KEY) as engine:
        first, second = serve(), serve()
        body = instance("a", server=engine, api_key=KEY)
        assert first.http.post("/instances", json=body).status_code == 201
        wait_until(lambda: len(second.http.get("/instances").json()["instances"]) == 1, 10)
        assert second.http.post("/instances", json=body).status_code == 200
        assert second.http.post("/instances", json=body | {"api_key": "other"}).status_code == 409
        for running in (second, serve()):
            wait_until(lambda one=running: one.http.get("/instances/a").json().get("version") is not None, 10)  # type: ignore[misc]
            assert not running.instance("a")["unauthorized"]
        assert engine.keys == {f"Bearer {KEY}"}
        file = tmp_path / "state"
        shown = runner.invoke(main, ["state", "show", "--state", server.url])
        exported = runner.invoke(main, ["state", "export", str(file), "--state", server.url])
        assert (shown.exit_code, exported.exit_code) == (0, 0)
        assert KEY not in shown.output + exported.output
        assert KEY.encode() not in file.read_bytes()
        again = runner.invoke(main, ["state", "import", str(file), "--replace", "--state", server.url])
        assert again.exit_code == 0, again.output
        record = server.command("HGET", "kvroute:{registry}:instances", "i:a")
        assert KEY.encode() in record  # the export knows it not, the store keeps it
        server.command("HDEL", "kvroute:{registry}:instances", "i:a")
        assert runner.invoke(main, ["state", "import", str(file), "--state", server.url]).exit_code == 0
        assert b'"api_key"' not in server.command("HGET", "kvroute:{registry}:instances", "i:a")


def test_a_registered_instance_without_a_key_is_as_earlier_releases_have_it(
    serve: Callable[[], Running], server: RedisServer
) -> None:
    running = serve()
    assert running.http.post("/instances", json=instance("a")).status_code == 201
    record = server.command("HGET", "kvroute:{registry}:instances", "i:a")
    assert b"api_key" not in record
