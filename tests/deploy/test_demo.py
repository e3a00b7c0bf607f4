"""The whole demo as a user runs it."""

from __future__ import annotations

import json
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import httpx
import pytest

from deploy.demo_processes import ROOT, free_port
from deploy.demo_prompts import CHATS, DOCUMENTS, QUESTIONS, TURNS

pytestmark = pytest.mark.xdist_group("demo")  # one process sets it up once

COMMAND = [sys.executable, "-m", "deploy.demo"]
ROW = re.compile(r" (\S.*?\S) {2,}(\d+)  (\S+) +(\w+) +(\d+) +(\d+) +(\d+) *")
RUN = re.compile(r" (kvroute|round robin) +(\d+)% +(\d+) +(\d+) *")
REQUESTS = len(DOCUMENTS) * QUESTIONS + len(CHATS) * TURNS


class Row(NamedTuple):
    """A line of the table of decisions."""

    tokens: int
    instance: str
    reason: str
    reusable: int
    cached: int


@pytest.fixture(scope="module")
def printed() -> str:
    done = subprocess.run(COMMAND, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.fixture(scope="module")
def rows(printed: str) -> dict[str, Row]:
    found = [match.groups() for match in map(ROW.fullmatch, printed.splitlines()) if match]
    return {
        about: Row(int(tokens), instance, reason, int(reusable), int(cached))
        for about, tokens, instance, reason, reusable, cached, _ in found
    }


def test_the_engines_reuse_what_the_router_said(printed: str, rows: dict[str, Row]) -> None:
    assert len(rows) == REQUESTS
    assert all(row.reusable == row.cached for row in rows.values())
    assert f"engine reused in {REQUESTS} of {REQUESTS} requests" in printed
    reused, asked = sum(row.cached for row in rows.values()), sum(row.tokens for row in rows.values())
    assert f"{reused} of {asked} prompt tokens" in printed
    assert f"the engines have delivered {reused}." in printed


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_document_is_computed_once_and_then_found(rows: dict[str, Row], document: str) -> None:
    first, *later = (rows[f"{document}, question {number}"] for number in range(1, QUESTIONS + 1))
    assert (first.reason, first.cached) == ("cold", 0)
    assert {(row.reason, row.instance) for row in later} == {("prefix", first.instance)}
    assert all(row.cached > 0.9 * row.tokens for row in later)


@pytest.mark.parametrize("name", CHATS)
def test_a_conversation_stays_where_it_is(rows: dict[str, Row], name: str) -> None:
    first, *later = (rows[f"{name}'s chat, turn {number}"] for number in range(1, TURNS + 1))
    assert {(row.reason, row.instance) for row in later} == {("prefix", first.instance)}


def test_round_robin_hits_less_in_the_same_run(printed: str, rows: dict[str, Row]) -> None:
    runs = {match[1]: int(match[2]) for match in map(RUN.fullmatch, printed.splitlines()) if match}
    hits = sum(row.cached for row in rows.values()) / sum(row.tokens for row in rows.values())
    assert runs.keys() == {"kvroute", "round robin"}
    assert runs["kvroute"] == round(100 * hits)
    assert runs["round robin"] < runs["kvroute"]


def test_an_engine_with_another_seed_is_refused_in_plain_words(printed: str) -> None:
    words = " ".join(printed.split())
    assert "vllm-2 is refused" in words
    assert "block hashes are sha256_cbor with PYTHONHASHSEED=42" in words
    assert "restart this engine with --prefix-caching-hash-algo sha256_cbor and PYTHONHASHSEED=0" in words


def test_a_killed_engine_is_believed_empty(printed: str) -> None:
    killed = re.search(r"Killing (vllm-\d), which holds (\d+) tokens", printed)
    assert killed is not None
    assert int(killed[2]) > 0
    assert f"{killed[1]} is believed empty" in printed


def test_output_that_is_no_terminal_is_plain_and_narrow(printed: str) -> None:
    assert all(char == "\n" or char.isprintable() for char in printed)
    assert max(len(line) for line in printed.splitlines() if '"prompt"' not in line) <= 100  # that one is to be copied


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
        printed = _read_until(process, b"where that is cached)")
        url = _url(printed)
        *_, curl = re.findall(r"^  (curl .*\n(?: {7}.*\n)?)", printed, re.MULTILINE)
        done = subprocess.run(curl, shell=True, capture_output=True, text=True, timeout=30, check=True)
        answer = json.loads(done.stdout)
        assert (answer["reason"], answer["trust"]) == ("prefix", "exact")
        assert answer["reusable_tokens"] >= 16
        assert {one["instance"] for one in answer["candidates"]} == {"vllm-0", "vllm-1", "vllm-2", "sglang-0"}
        urls = _urls(url)
        assert len(urls) == 5
        assert _statuses_of_the_readme(url) == [200, 200, 200, 204, 204, 201, 204, 204]
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


def _statuses_of_the_readme(url: str) -> list[int]:
    """What the requests under "Ask it" are answered, sent as they stand there but for the port, in their order."""
    text = (ROOT / "README.md").read_text().partition("## Ask it")[2].partition("\n## ")[0]
    script = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).replace("http://127.0.0.1:8900", url)
    script = script.replace("curl -s ", r"curl -s -w '\n%{stderr}%{http_code}\n' ")
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert all(json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    return [int(line) for line in done.stderr.split()]


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
