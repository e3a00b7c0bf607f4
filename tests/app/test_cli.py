"""The command line, as a user meets it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from app.cli import main
from app.explain import UnreadableTokens, read_tokens
from app.version import VERSION
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
CONFIG = """
hash: {seed: "0"}
auth: {token: private-word}
models: {other: {hash: {seed: none}}}
instances:
  - {id: "vllm [red]0", engine: vllm, model: org/model, url: "http://vllm-0:8000", events: "tcp://vllm-0:5557"}
"""
runner = CliRunner()

Answers = dict[str, tuple[int, Any]]
Serve = Callable[[Answers], str]


@pytest.fixture(autouse=True)
def _no_settings_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("KVROUTE_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def answering() -> Iterator[tuple[Serve, list[tuple[str, dict[str, str], Any]]]]:
    """Starts an HTTP server that gives fixed answers; the list holds (path, headers, body) of what it was asked."""
    asked: list[tuple[str, dict[str, str], Any]] = []
    servers: list[ThreadingHTTPServer] = []

    def serve(answers: Answers) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer(None)

            def do_POST(self) -> None:
                self.answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))

            def answer(self, body: Any) -> None:
                asked.append((self.path, {key.lower(): text for key, text in self.headers.items()}, body))
                status, content = answers[self.path]
                raw = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield serve, asked
    for server in servers:
        server.shutdown()
        server.server_close()


def worker(**values: Any) -> dict[str, Any]:
    identity = {"status": "verified", "algorithm": "sha256", "seed": "0", "expected": None, "advice": None}
    return {
        "dp_rank": 0,
        "state": "live",
        "trust": "exact",
        "lag_s": 0.02,
        "hash": identity,
        "wire_errors": {},
    } | values


def fleet(*workers: dict[str, Any], ready: int = 200) -> Answers:
    instances = [{"id": "vllm [red]0", "draining": False, "workers": list(workers)}]
    return {
        "/healthz": (200, {"status": "ok"}),
        "/readyz": (ready, {"ready": ready == 200, "waiting_for": ["vllm-1"]}),
        "/instances": (200, {"instances": instances if workers else []}),
    }


def test_version_prints_the_version() -> None:
    result = runner.invoke(main, ["version"])
    assert (result.exit_code, result.stdout.strip()) == (0, VERSION)


def test_config_check_shows_what_is_set_but_no_secret(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(CONFIG)
    result = runner.invoke(main, ["config-check", str(file)])
    assert result.exit_code == 0
    for text in ("vllm [red]0", "org/model", "http://vllm-0:8000", "tcp://vllm-0:5557", "seed 0", "hash of other"):
        assert text in result.stdout
    assert "private-word" not in result.output


def test_config_check_takes_the_environment_into_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(CONFIG)
    monkeypatch.setenv("KVROUTE_HASH__SEED", "4711")
    assert "seed 4711" in runner.invoke(main, ["config-check", str(file)]).stdout
    monkeypatch.setenv("KVROUTE_LIMITS__BODY_BYTES", "some")
    assert runner.invoke(main, ["config-check", str(file)]).exit_code == 2


def test_config_check_shows_every_key_that_was_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(
        CONFIG + "limits: {route_timeout_s: 3}\nstate_tokens: false\nstate_store: {ttl_s: 60, poll_s: 1}\n"
        "router: {guard_multiple: 4}\nlistener:\nlog: {access: true}\n"
    )
    monkeypatch.setenv("KVROUTE_POLLING__TIMEOUT_S", "7")
    shown = runner.invoke(main, ["config-check", str(file)]).stdout
    rows = [re.sub(r"\W+$", "", " ".join(line.split("│")[1:3])).split(maxsplit=1) for line in shown.splitlines()]
    found = {row[0]: row[1].strip() for row in rows if len(row) == 2}
    assert found["limits"] == "route_timeout_s 3"
    assert found["state_tokens"] == "false"
    assert found["state_store"] == "ttl_s 60, poll_s 1"
    assert found["router"] == "guard_multiple 4"
    assert found["polling"] == "timeout_s 7"
    assert "listener" not in found


@pytest.mark.parametrize("command", [["config-check", "deploy/fleet.example.yaml"], ["serve"]])
def test_a_core_that_cannot_serve_stops_the_start_and_the_check(command: list[str]) -> None:
    environment = os.environ | {"KVROUTE_CORE": "rust"}
    whole = [str(Path(sys.executable).with_name("kvroute")), *command]
    ended = subprocess.run(whole, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stderr) == (2, "KVROUTE_CORE='rust': it must be one of auto, native, python\n")


@pytest.mark.parametrize("seed", ["4294967296", "-1", "abc", "1e3"])
def test_config_check_doubts_a_seed_with_which_no_engine_starts(seed: str, tmp_path: Path) -> None:
    """vLLM hashes any text, but Python itself refuses these."""
    file = tmp_path / "fleet.yaml"
    file.write_text(f"hash: {{seed: '{seed}'}}")
    result = runner.invoke(main, ["config-check", str(file)])
    assert (result.exit_code, "does not start with such a PYTHONHASHSEED" in result.stdout) == (0, True)
    environment = os.environ | {"PYTHONHASHSEED": seed}
    assert subprocess.run([sys.executable, "-c", ""], env=environment, capture_output=True, check=False).returncode != 0


@pytest.mark.parametrize(("settings", "doubted"), [("{}", True), ("auth: {token: right}", False)])
def test_a_token_that_only_gateways_read_is_doubted(settings: str, doubted: bool, tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(settings)
    result = runner.invoke(main, ["config-check", str(file)], env={"KVROUTE_TOKEN": "x"})
    assert (result.exit_code, "KVROUTE_TOKEN is set" in result.stdout) == (0, doubted)


def test_the_version_is_an_option_too() -> None:
    said = [runner.invoke(main, [word]) for word in ("version", "--version")]
    assert said[0].exit_code == said[1].exit_code == 0
    assert said[0].stdout == said[1].stdout


@pytest.mark.parametrize("seed", ["4294967295", "0", "042", " 7", "+7", "random", ""])
def test_config_check_takes_every_seed_that_python_takes(seed: str, tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(f"hash: {{seed: '{seed}'}}")
    assert "PYTHONHASHSEED" not in runner.invoke(main, ["config-check", str(file)]).stdout
    environment = os.environ | {"PYTHONHASHSEED": seed}
    assert subprocess.run([sys.executable, "-c", ""], env=environment, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("command", [["config-check"], ["serve", "--config"]])
def test_a_bad_file_is_exit_status_2_and_says_file_key_value_and_what_is_allowed(
    command: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("hash: {policy: maybe}")
    result = runner.invoke(main, [*command, str(file)])
    assert result.exit_code == 2
    for text in (str(file), "hash.policy", "maybe", "enforce or translate"):
        assert text in result.stderr
    assert runner.invoke(main, [*command, str(tmp_path / "none")]).exit_code == 2


def test_the_exit_status_reaches_the_shell(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "app.cli", "config-check", str(tmp_path / "none.yaml")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "none.yaml" in done.stderr
    assert done.stdout == ""


def test_serve_answers_until_it_is_told_to_stop_and_logs_json(tmp_path: Path) -> None:
    port, file = free_port(), tmp_path / "fleet.yaml"
    file.write_text("log: {level: info}")
    command = [sys.executable, "-m", "app.cli", "serve", "--config", str(file), "--port", str(port)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_for(f"http://127.0.0.1:{port}/healthz")
            taken = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        finally:
            process.terminate()
        out, errors = process.communicate(timeout=30)
    assert process.returncode in (0, -signal.SIGTERM)
    assert out == ""
    events = [json.loads(line)["event"] for line in errors.splitlines()]
    assert any("running on" in event for event in events)
    assert any("shutdown complete" in event for event in events)
    assert taken.returncode not in (0, 2)
    assert "in use" in taken.stderr


def wait_for(url: str) -> None:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            if httpx.get(url, timeout=1, trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    pytest.fail(f"{url} does not answer")


def test_doctor_is_content_with_a_healthy_fleet(answering: tuple[Serve, list[Any]]) -> None:
    url = answering[0](fleet(worker()))
    result = runner.invoke(main, ["doctor", "--url", url + "/"])
    assert result.exit_code == 0
    for text in ("vllm [red]0", "live", "exact", "verified", "0.02 s", "all is well"):
        assert text in result.stdout


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"state": "refused", "trust": "none", "advice": "set PYTHONHASHSEED=0"}, "set PYTHONHASHSEED=0"),
        ({"state": "refused", "hash": {"status": "mismatch", "advice": "use sha256"}}, "use sha256"),
        ({"hash": {"status": "mismatch"}}, "identity"),
        ({"state": "down", "why": "its port refuses"}, "its port refuses"),
        ({"state": "suspect", "why": "its event stream broke off"}, "broke off"),
        ({"state": "ejected", "why": "requests failed"}, "requests failed"),
        ({"state": "connecting"}, "kv-events-config"),
        ({"trust": "none"}, "kv-events-config"),
        ({"trust": "none", "hash": None, "lag_s": None}, "kv-events-config"),
    ],
)
def test_doctor_says_what_is_wrong(answering: tuple[Serve, list[Any]], values: dict[str, Any], words: str) -> None:
    result = runner.invoke(main, ["doctor", "--url", answering[0](fleet(worker(**values)))])
    assert result.exit_code == 1
    assert words in result.stdout


def test_doctor_tells_an_engine_that_is_down_from_one_without_events(answering: tuple[Serve, list[Any]]) -> None:
    answers = fleet(worker(state="connecting"))
    answers["/instances"][1]["instances"][0]["reachable"] = False
    result = runner.invoke(main, ["doctor", "--url", answering[0](answers)])
    assert (result.exit_code, "is it running" in result.stdout) == (1, True)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"trust": "partial"}, "never seen"),
        ({"lag_s": 60.0}, "late"),
        ({"wire_errors": {"msgpack": 1}}, "wire_errors"),
    ],
)
def test_doctor_notes_what_is_not_wrong(answering: tuple[Serve, list[Any]], values: dict[str, Any], words: str) -> None:
    result = runner.invoke(main, ["doctor", "--url", answering[0](fleet(worker(**values)))])
    assert result.exit_code == 0
    assert words in result.stdout
    assert "nothing is wrong; see the advice" in result.stdout


def test_doctor_notes_an_instance_that_drains_and_says_when_a_model_has_no_other(
    answering: tuple[Serve, list[Any]],
) -> None:
    answers = fleet(worker())
    first, second = answers["/instances"][1]["instances"] = [
        {"id": name, "model": "org/model", "draining": False, "workers": [worker()]} for name in ("one", "two")
    ]
    first["draining"] = True
    result = runner.invoke(main, ["doctor", "--url", answering[0](answers)])
    assert result.exit_code == 0
    assert "gets no new requests" in result.stdout
    assert "all is well" not in result.stdout
    second["draining"] = True
    result = runner.invoke(main, ["doctor", "--url", answering[0](answers)])
    assert result.exit_code == 1
    assert "every instance of org/model is draining" in result.stdout


def test_doctor_says_that_the_state_store_fails(answering: tuple[Serve, list[Any]]) -> None:
    answers = fleet(worker())
    for store, status in ((None, 0), ({"ok": True}, 0), ({"ok": False, "op": "append", "reason": "oom"}, 1)):
        answers["/readyz"][1]["state_store"] = store
        result = runner.invoke(main, ["doctor", "--url", answering[0](answers)])
        assert (result.exit_code, "the state store fails (append: oom)" in result.stdout) == (status, status == 1)


def test_doctor_looks_at_the_process_too(answering: tuple[Serve, list[Any]]) -> None:
    serve, _ = answering
    result = runner.invoke(main, ["doctor", "--url", serve(fleet(worker(), ready=503))])
    assert (result.exit_code, "vllm-1" in result.stdout) == (1, True)
    result = runner.invoke(main, ["doctor", "--url", serve(fleet(worker()) | {"/healthz": (503, {})})])
    assert (result.exit_code, "healthz" in result.stdout) == (1, True)
    result = runner.invoke(main, ["doctor", "--url", serve(fleet())])
    assert (result.exit_code, "no instances" in result.stdout) == (1, True)


@pytest.mark.parametrize("answer", [b"<html>", b"[]", b"\xff", b""])
def test_doctor_recognises_what_is_not_kvroute(answering: tuple[Serve, list[Any]], answer: bytes) -> None:
    url = answering[0]({"/healthz": (200, answer)})
    result = runner.invoke(main, ["doctor", "--url", url])
    assert result.exit_code == 1
    assert "not as kvroute does" in result.stderr


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://[::", "http://a b", "", "ftp://a", "127.0.0.1:1"])
def test_an_unreachable_url_is_a_sentence_not_a_traceback(url: str) -> None:
    for command in (["doctor"], ["explain", "--model", "m", "--prompt", "x"]):
        result = runner.invoke(main, [*command, "--url", url, "--timeout", "2"])
        assert result.exit_code == 1
        assert isinstance(result.exception, SystemExit)
        assert len(result.stderr.splitlines()) == 1


ROUTED = {
    "instance": "vllm [red]0",
    "dp_rank": 0,
    "reason": "prefix",
    "prompt_tokens": 3,
    "reusable_tokens": 2,
    "candidates": [
        {
            "instance": "vllm [red]0",
            "dp_rank": 0,
            "matched_tokens": 3,
            "reusable_tokens": 2,
            "by_medium": {"gpu": 3, "cpu": 0, "disk": 0},
            "trust": "exact",
            "load": {"running": 1, "waiting": None, "kv_usage": 0.25},
            "score": 0.5,
            "why": None,
        },
        {"instance": "vllm-1", "why": "draining"},
    ],
}


def test_explain_asks_without_a_trace_and_shows_every_candidate(
    answering: tuple[Serve, list[Any]], tmp_path: Path
) -> None:
    serve, asked = answering
    file = tmp_path / "tokens"
    file.write_text("[1, 2,\n3]")
    options = ["--url", serve({"/route": (200, ROUTED)}), "--token", "private-word", "--lora", "ad"]
    result = runner.invoke(main, ["explain", "--model", "m", "--tokens", str(file), *options])
    assert result.exit_code == 0
    for text in ("vllm [red]0 rank 0 (prefix): 2 of 3 tokens reusable", "3/0/0", "0.25", "vllm-1", "draining"):
        assert text in result.stdout
    ((path, headers, body),) = asked
    assert (path, headers["authorization"]) == ("/route", "Bearer private-word")
    assert body == {
        "model": "m",
        "token_ids": [1, 2, 3],
        "lora": "ad",
        "cache_salt": None,
        "extra_key": None,
        "session_id": None,
        "dry_run": True,
        "explain": True,
    }


def test_explain_reads_tokens_from_standard_input_and_text_from_the_command_line(
    answering: tuple[Serve, list[Any]],
) -> None:
    serve, asked = answering
    url = serve({"/route": (200, ROUTED)})
    assert runner.invoke(main, ["explain", "--model", "m", "--tokens", "-", "--url", url], input="1 2").exit_code == 0
    assert runner.invoke(main, ["explain", "--model", "m", "--prompt", "é", "--url", url]).exit_code == 0
    assert [(body.get("token_ids"), body.get("prompt")) for _, _, body in asked] == [([1, 2], None), (None, "é")]


def test_explain_says_when_text_was_not_tokenised(answering: tuple[Serve, list[Any]]) -> None:
    url = answering[0]({"/route": (200, ROUTED | {"prompt_tokens": None, "detail": "no answer"})})
    result = runner.invoke(main, ["explain", "--model", "m", "--prompt", "x", "--url", url])
    assert "not tokenised" in result.stdout
    assert "no answer" in result.stdout


def test_explain_shows_the_problem_of_a_refused_request(answering: tuple[Serve, list[Any]]) -> None:
    url = answering[0]({"/route": (404, {"status": 404, "detail": "unknown model; there are: m"})})
    result = runner.invoke(main, ["explain", "--model", "x", "--prompt", "x", "--url", url])
    assert result.exit_code == 1
    assert "404: unknown model; there are: m" in result.stderr


@pytest.mark.parametrize("arguments", [[], ["--prompt", "x", "--tokens", "-"], ["--tokens", "/nowhere/at/all"]])
def test_explain_needs_one_readable_prompt(arguments: list[str]) -> None:
    result = runner.invoke(main, ["explain", "--model", "m", *arguments])
    assert result.exit_code == 2
    assert result.stderr


@pytest.mark.parametrize("text", ["", "[]", "1.5", "-1", "1, x", "[1, [2]]", "true", "9" * 11])
def test_what_is_no_list_of_tokens_is_refused(text: str) -> None:
    with pytest.raises(UnreadableTokens):
        read_tokens(StringIO(text))
