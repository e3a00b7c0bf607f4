"""The whole demo as a user runs it."""

from __future__ import annotations

import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from deploy.demo_processes import ROOT, free_port
from deploy.recording import RECORDINGS

COMMAND = [sys.executable, "-m", "deploy.demo"]
ROW = re.compile(r" (\S.*?\S) {2,}(\d+) +(\d+) +(\d+)  (\S+) +(\w+) +(\d+) +(\d+) +(\d+) *")
VLLM = {"vllm-0", "vllm-1"}
ANY = VLLM | {"sglang-0"}
EXPECTED = {
    "new to every instance": (123, 0, ANY, "cold", [0, 0, 0]),
    "the same, computed since": (123, 96, {"vllm-1"}, "prefix", [0, 96, 0]),
    "cached on both vLLM": (97, 96, VLLM, "prefix", [96, 96, 0]),
    "cached on vllm-0": (195, 192, {"vllm-0"}, "prefix", [192, 0, 0]),
    "cached on sglang-0": (150, 144, {"sglang-0"}, "prefix", [0, 0, 144]),
    "image, cached on both vLLM": (104, 96, VLLM, "prefix", [96, 96, 0]),
    "image moved by one token": (104, 0, ANY, "cold", [0, 0, 0]),
    "cached, other cache_salt": (97, 0, ANY, "cold", [0, 0, 0]),
    "cached nowhere": (64, 0, ANY, "cold", [0, 0, 0]),
}
"""Per prompt: tokens, matched and reusable, where it may go, why, what vllm-0, vllm-1 and sglang-0 hold."""


@pytest.fixture(scope="module")
def printed() -> str:
    done = subprocess.run(COMMAND, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_each_prompt_goes_to_the_instance_that_holds_it(printed: str) -> None:
    rows = {match[1]: match.groups() for match in map(ROW.fullmatch, printed.splitlines()) if match}
    assert rows.keys() == EXPECTED.keys()
    for about, (tokens, reused, allowed, why, held) in EXPECTED.items():
        _, *numbers, instance, reason, first, second, third = rows[about]
        assert list(map(int, numbers)) == [tokens, reused, reused], about
        assert instance in allowed, about
        assert reason == why, about
        assert list(map(int, (first, second, third))) == held, about


def test_an_engine_with_another_seed_is_refused_in_plain_words(printed: str) -> None:
    words = " ".join(printed.split())
    assert "vllm-2 is refused" in words
    assert "block hashes are sha256_cbor with PYTHONHASHSEED=42" in words
    assert "restart this engine with --prefix-caching-hash-algo sha256_cbor and without PYTHONHASHSEED" in words


def test_the_recorded_engines_reused_the_same(printed: str) -> None:
    assert "equal in all 17 cases" in printed
    assert f"{96 + 96 + 192 + 144 + 96} of {sum(tokens for tokens, *_ in EXPECTED.values())} prompt tokens" in printed


def test_output_that_is_no_terminal_is_plain_and_narrow(printed: str) -> None:
    assert all(char == "\n" or char.isprintable() for char in printed)
    assert max(map(len, printed.splitlines())) <= 100


def test_the_readme_shows_what_is_printed(printed: str) -> None:
    shown = re.search(r"```text\n(prompt .*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert shown is not None
    lines = {line.strip() for line in printed.splitlines()}
    assert {line.strip() for line in shown[1].splitlines()} <= lines


def test_all_is_gone_afterwards(printed: str) -> None:
    _assert_nobody_answers([_url(printed)])


def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [*COMMAND, "--port", str(port)], cwd=ROOT, capture_output=True, text=True, timeout=90, check=False
        )
    assert done.returncode == 1
    assert f"the demo failed: port {port} cannot be used" in done.stderr


def test_keep_runs_until_interrupted() -> None:
    with demo("--keep") as process:
        url = _url(_read_until(process, b"request.json"))
        with httpx.Client(base_url=url, trust_env=False) as client:
            body = (RECORDINGS / "request.json").read_bytes()
            answer = client.post("/route", content=body, headers={"Content-Type": "application/json"})
            assert (answer.status_code, answer.json()["instance"]) == (200, "vllm-0")
        urls = _urls(url)
        assert len(urls) == 5
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    _assert_nobody_answers(urls)


def test_a_demo_that_is_ended_early_takes_its_processes_along() -> None:
    port = free_port()
    with demo("--port", str(port)) as process:
        _read_until(process, b"Starting the router")
        urls = _urls(f"http://127.0.0.1:{port}")
        process.terminate()
        assert process.wait(60) == 130
    _assert_nobody_answers(urls)


@contextmanager
def demo(*options: str) -> Iterator[subprocess.Popen[bytes]]:
    """The demo as a process, ended at the latest when the block ends."""
    process = subprocess.Popen([*COMMAND, *options], cwd=ROOT, stdout=subprocess.PIPE, bufsize=0)
    assert process.stdout is not None
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


def _read_until(process: subprocess.Popen[bytes], words: bytes, timeout_s: float = 60.0) -> str:
    assert process.stdout is not None
    end, read = time.monotonic() + timeout_s, b""
    while words not in read:
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, end - time.monotonic()))
        part = process.stdout.read(4096) if ready else b""
        assert part, f"{words!r} did not come: {read.decode()}"
        read += part
    return read.decode()


def _urls(router: str) -> list[str]:
    """Of the router and of its engines."""
    answer = httpx.get(f"{router}/instances", trust_env=False)
    return [router, *(one["url"] for one in answer.json()["instances"])]


def _assert_nobody_answers(urls: list[str]) -> None:
    for url in urls:
        with pytest.raises(httpx.ConnectError):
            httpx.get(url, trust_env=False)


def _url(printed: str) -> str:
    found = re.search(r"(http://127\.0\.0\.1:\d+)/docs", printed)
    assert found is not None, printed
    return found[1]
