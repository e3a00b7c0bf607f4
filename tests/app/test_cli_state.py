"""kvroute state, as an operator meets it, with a real Redis."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from typer.testing import CliRunner

from app.cli import main
from app.saved_state import pack_batch, pack_worker
from engine.wire import decode
from index.block_hash import HashIdentity
from index.index import Index
from index.pool import WorkerSpec
from index.worker import EngineKind, Trust, Worker
from store.state import Entry, Lineage, RegisteredInstance, Snapshot, StateStore, Stored
from store.state_url import open_store
from tests.support.engine_events import prompt, sglang_stored, vllm_removed, vllm_stored
from tests.support.redis_server import Options, RedisServer

ROOT = Path(__file__).parents[2]
T = TypeVar("T")
runner = CliRunner()
NOW_MS = int(time.time() * 1000)
FIRST, SECOND, OTHER = Worker("vllm [red]0", 0), Worker("vllm [red]0", 1), Worker("sglang/0", 0)
INSTANCES = [
    RegisteredInstance("vllm [red]0", {"engine": "vllm", "model": "org/m", "url": "http://vllm-0:8000"}, "file"),
    RegisteredInstance("sglang/0", {"engine": "sglang", "model": "q", "url": "http://s:30000"}, "http", True),
]


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, log_stream: object) -> None:
    """No settings around; logging is put back afterwards."""
    for name in [name for name in os.environ if name.startswith("KVROUTE_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RedisServer]:
    with RedisServer(Options(password="private-word")) as server:
        yield server


@pytest.fixture
def server(shared_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> RedisServer:
    """Empty, with a password, and set as the store."""
    shared_server.command("FLUSHALL")
    monkeypatch.setenv("KVROUTE_STATE", shared_server.url)
    return shared_server


def in_store(server: RedisServer, work: Callable[[StateStore], Awaitable[T]]) -> T:
    """Work with the server's store as a router does."""

    async def run() -> T:
        store = open_store(server.url)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def recorded(worker: Worker, engine: EngineKind, batches: list[list[dict[str, Any]]], logged: int) -> Stored:
    """What a router stores after these batches, a second apart: the last `logged` are in the log."""
    index, lineage = Index(), Lineage(0, NOW_MS)
    index.add(worker, WorkerSpec("m", engine))
    snapshot, log = None, []
    identity = HashIdentity("sha256", None) if engine is EngineKind.VLLM else None
    for seq, events in enumerate(batches):
        payload = msgspec.msgpack.encode([NOW_MS / 1000 + seq, events, worker.dp_rank])
        delta = index.apply(worker, decode(payload, engine), record=True)
        ts_ms = NOW_MS + seq * 1000
        if seq == len(batches) - 1 - logged:
            body = pack_worker(Trust.EXACT, None, identity, shared=True, dump=index.dump(worker))
            snapshot = Snapshot(worker, lineage, seq, ts_ms, "boot", body)
        elif snapshot is not None:
            assert delta.operations is not None
            log.append(Entry(worker, lineage, seq, ts_ms, pack_batch(Trust.PARTIAL, None, delta.operations)))
    assert snapshot is not None
    return Stored(snapshot, log)


def vllm(worker: Worker, batches: int = 4, logged: int = 2) -> Stored:
    """Batches of 4 blocks each; the last one drops those of the first."""
    events = [[vllm_stored(prompt(number))] for number in range(batches)]
    events[-1].append(vllm_removed(events[0][0]))
    return recorded(worker, EngineKind.VLLM, events, logged)


def sglang() -> Stored:
    """90 pages, of which 30 only in the log."""
    return recorded(OTHER, EngineKind.SGLANG, [[sglang_stored(prompt(n, 30 * n + 30))] for n in range(2)], 1)


def put(server: RedisServer, *workers: Stored, instances: list[RegisteredInstance] = INSTANCES) -> None:
    async def fill(store: StateStore) -> None:
        for stored in workers:
            assert await store.offer(stored.snapshot) == "accepted"
            assert await store.append(stored.entries) == [True] * len(stored.entries)
        for instance in instances:
            await store.put_instance(instance)
            await store.set_draining(instance.id, instance.draining)

    in_store(server, fill)


def contents(server: RedisServer) -> tuple[list[Stored | None], dict[str, RegisteredInstance]]:
    async def read(store: StateStore) -> tuple[list[Stored | None], dict[str, RegisteredInstance]]:
        return [await store.load(worker) for worker in await store.workers()], await store.instances()

    return in_store(server, read)


def run(*arguments: object, input: str | None = None) -> tuple[int, str, str]:
    result = runner.invoke(main, ["state", *map(str, arguments)], input=input)
    assert "private-word" not in result.output
    return result.exit_code, result.stdout, result.stderr


def row(text: str, name: str) -> list[str]:
    """The cells of the only row of a table that begins with a name."""
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]
    (found,) = [cells for cells in rows if cells[0] == name]
    return found


def test_show_tells_of_each_worker_what_a_warm_start_would_hold(server: RedisServer) -> None:
    first, other = vllm(FIRST), sglang()
    put(server, first, other)
    status, out, errors = run("show")
    assert (status, errors) == (0, "")
    size = f"{len(first.snapshot.body):,} B"
    cells = row(out, "vllm [red]0/0")
    assert cells[1:4] == ["vllm", f"0@{NOW_MS}", "3"]
    assert cells[4].endswith((" s", " min"))
    assert cells[5:] == [size, "2", "partial", "sha256, seed none", "12", "0", "0", "0"]
    cells = row(out, "sglang/0/0")
    assert (cells[1], cells[3], cells[6:]) == ("sglang", "1", ["1", "partial", "none", "90", "0", "0", "0"])


def test_show_tells_the_registry(server: RedisServer) -> None:
    put(server)
    status, out, _ = run("show")
    assert status == 0
    assert row(out, "vllm [red]0") == ["vllm [red]0", "vllm", "org/m", "http://vllm-0:8000", "file", "no"]
    assert row(out, "sglang/0") == ["sglang/0", "sglang", "q", "http://s:30000", "http", "yes"]


def test_show_says_what_a_router_would_not_use(server: RedisServer) -> None:
    first, second = vllm(FIRST), vllm(SECOND)
    first = first._replace(snapshot=first.snapshot._replace(body=b"of another program"), entries=[])
    put(server, first, second)
    server.command("HSET", next(iter(server.command("KEYS", "*/1}:snap"))), "v", "99")
    status, out, errors = run("show")
    assert status == 0
    assert row(out, "vllm [red]0/0")[7:9] == ["not usable", "not a snapshot of this version (ValidationError)"]
    assert row(out, "vllm [red]0/1")[7] == "not readable"
    assert "format version 99" in errors


def test_show_of_an_empty_store_is_two_empty_tables(server: RedisServer) -> None:
    status, out, _ = run("show")
    assert status == 0
    assert "workers" in out
    assert "instances" in out


def test_an_export_brings_everything_back(server: RedisServer, tmp_path: Path) -> None:
    put(server, vllm(FIRST), vllm(SECOND, logged=0), sglang())
    before, file = contents(server), tmp_path / "state.export"
    status, out, _ = run("export", file)
    assert (status, out) == (0, f"3 workers with 3 log entries and 2 instances written to {file}\n")
    server.command("FLUSHALL")
    status, out, _ = run("import", file)
    assert (status, out) == (0, "3 workers and 2 instances stored\n")
    assert contents(server) == before
    assert None not in before[0]
    keys = server.command("KEYS", "kvroute:*")
    assert all(0 < server.command("PTTL", key) <= 86_400_000 for key in keys)


def test_only_the_owner_can_read_an_export_and_nothing_else_is_left(server: RedisServer, tmp_path: Path) -> None:
    put(server, sglang())
    file = tmp_path / "state.export"
    file.write_text("older")
    file.chmod(0o644)
    assert run("export", file)[0] == 0
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_an_export_that_fails_leaves_the_older_file(server: RedisServer, tmp_path: Path) -> None:
    file = tmp_path / "state.export"
    file.write_text("older")
    status, _, errors = run("export", file, "--state", "redis://:private-word@127.0.0.1:1")
    assert status == 1
    assert "redis://127.0.0.1:1: " in errors
    assert file.read_text() == "older"
    assert list(tmp_path.iterdir()) == [file]
    assert run("export", tmp_path / "none" / "state.export")[0] == 1


def test_an_export_leaves_out_what_it_cannot_read_and_says_so(server: RedisServer, tmp_path: Path) -> None:
    put(server, vllm(FIRST), vllm(SECOND))
    server.command("HSET", next(iter(server.command("KEYS", "*/1}:snap"))), "v", "99")
    status, out, errors = run("export", tmp_path / "state")
    assert status == 0
    assert out.startswith("1 worker")
    assert "left out, not readable: vllm [red]0/1" in errors


def exported(server: RedisServer, file: Path, *workers: Stored, instances: list[RegisteredInstance]) -> Path:
    put(server, *workers, instances=instances)
    assert run("export", file)[0] == 0
    server.command("FLUSHALL")
    return file


def test_an_import_goes_on_where_the_store_is_older(server: RedisServer, tmp_path: Path) -> None:
    newer = vllm(FIRST, batches=6, logged=4)
    file = exported(server, tmp_path / "state", newer, instances=[])
    for known in (0, 2, 4):
        server.command("FLUSHALL")
        put(server, newer._replace(entries=newer.entries[:known]), instances=[])
        assert run("import", file)[:2] == (0, "1 worker and 0 instances stored\n")
        assert contents(server)[0] == [newer]


@pytest.mark.parametrize("other_lineage", [False, True])
def test_an_import_keeps_what_is_newer_unless_it_is_told_to_replace(
    server: RedisServer, tmp_path: Path, other_lineage: bool
) -> None:
    newer = vllm(FIRST, batches=6, logged=4)
    older = newer._replace(entries=newer.entries[:2])
    if other_lineage:
        newer = moved(newer, Lineage(1, NOW_MS + 1000))
    file = exported(server, tmp_path / "state", older, instances=INSTANCES)
    changed = INSTANCES[1]._replace(draining=False)
    put(server, newer, instances=[changed])
    status, out, errors = run("import", file)
    assert (status, out) == (0, "0 workers and 1 instance stored\n")
    assert errors == "kept what is in the store: sglang/0\nkept what is in the store: vllm [red]0/0\n"
    assert contents(server) == ([newer], {one.id: one for one in (INSTANCES[0], changed)})
    assert run("import", file, "--replace")[:2] == (0, "1 worker and 2 instances stored\n")
    assert contents(server) == ([older], {one.id: one for one in INSTANCES})


def test_an_import_that_is_newer_by_its_log_alone_replaces_another_lineage(server: RedisServer, tmp_path: Path) -> None:
    newer = vllm(FIRST, batches=6, logged=4)
    file = exported(server, tmp_path / "state", newer, instances=[])
    put(server, moved(vllm(FIRST, batches=5, logged=1), Lineage(1, NOW_MS + 1000)), instances=[])
    assert run("import", file)[1] == "1 worker and 0 instances stored\n"
    assert contents(server)[0] == [newer]


def moved(stored: Stored, lineage: Lineage) -> Stored:
    entries = [entry._replace(lineage=lineage) for entry in stored.entries]
    return Stored(stored.snapshot._replace(lineage=lineage), entries)


def test_a_later_release_s_state_is_kept(server: RedisServer, tmp_path: Path) -> None:
    stored = vllm(FIRST)
    file = exported(server, tmp_path / "state", stored, instances=[])
    put(server, stored, instances=[])
    key = next(iter(server.command("KEYS", "*:snap")))
    server.command("HSET", key, "v", "99")
    status, _, errors = run("import", file)
    assert status == 0
    assert "kept what is in the store: vllm [red]0/0" in errors
    assert server.command("HGET", key, "v") == b"99"


def test_a_damaged_file_changes_nothing(server: RedisServer, tmp_path: Path) -> None:
    file = exported(server, tmp_path / "state", vllm(FIRST), sglang(), instances=INSTANCES)
    content = file.read_bytes()
    for damaged, words in (
        (content[:-1], "cut off"),
        (content[:-1] + bytes([content[-1] ^ 1]), "damaged"),
        (b"x" * 99, "not a file of"),
    ):
        file.write_bytes(damaged)
        status, out, errors = run("import", file, "--replace")
        assert (status, out) == (2, "")
        assert words in errors
        assert str(file) in errors
    assert server.command("DBSIZE") == 0
    assert run("import", tmp_path / "none")[0] == 2
    assert run("import", tmp_path)[0] == 2


def test_clear_asks_first(server: RedisServer) -> None:
    put(server, vllm(FIRST))
    status, out, _ = run("clear", "--worker", "vllm [red]0/0", input="n\n")
    assert status == 1
    assert "vllm [red]0/0" in out
    assert run("clear", "--worker", "vllm [red]0/0")[0] == 1
    assert len(contents(server)[0]) == 1
    assert run("clear", "--worker", "vllm [red]0/0", input="y\n")[0] == 0
    assert contents(server)[0] == []


def test_clear_deletes_an_instance_s_ranks_or_one_of_them(server: RedisServer) -> None:
    put(server, vllm(FIRST), vllm(SECOND), sglang())
    left = {FIRST, SECOND, OTHER}
    for name, gone in (("vllm [red]0/1", {SECOND}), ("vllm [red]0", {FIRST}), ("sglang/0", {OTHER})):
        assert run("clear", "--worker", name, "--yes")[0] == 0
        left -= gone
        assert {stored.snapshot.worker for stored in contents(server)[0] if stored is not None} == left
    assert server.command("KEYS", "kvroute:*:snap") == server.command("KEYS", "kvroute:*:log") == []
    assert set(contents(server)[1]) == {"vllm [red]0", "sglang/0"}


def test_clear_of_what_is_not_there_is_said(server: RedisServer) -> None:
    put(server, vllm(FIRST))
    status, _, errors = run("clear", "--worker", "vllm", "--yes")
    assert status == 1
    assert "nothing is stored of vllm" in errors


def test_the_store_can_be_named_by_option_file_or_environment(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(server, vllm(FIRST))
    assert "vllm [red]0/0" in run("show")[1]
    nowhere, file = "redis://127.0.0.1:1", tmp_path / "fleet.yaml"
    monkeypatch.setenv("KVROUTE_STATE", nowhere)
    assert run("show")[0] == 1
    assert "vllm [red]0/0" in run("show", "--state", server.url)[1]
    monkeypatch.delenv("KVROUTE_STATE")
    file.write_text(f"state: {server.url}")
    assert "vllm [red]0/0" in run("show", "--config", file)[1]
    assert run("show", "--config", file, "--state", nowhere)[0] == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no state store is set"),
        (["--state", "memory://"], "no state store is set"),
        (["--state", "http://:private-word@x"], "must begin with one of"),
        (["--state", "redis://:private-word@h:port"], "is not a URL"),
        (["--config", "/none.yaml"], "/none.yaml"),
    ],
)
def test_a_store_that_cannot_be_is_exit_status_2(arguments: list[str], words: str) -> None:
    status, out, errors = run("show", *arguments)
    assert (status, out) == (2, "")
    assert words in errors


@pytest.mark.parametrize("command", [["show"], ["export", "file"], ["clear", "--worker", "x"]])
def test_a_store_that_refuses_is_exit_status_1_and_says_why(
    command: list[str], server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, _, errors = run(*command, "--state", f"redis://:wrong@127.0.0.1:{server.port}")
    assert status == 1
    assert f"redis://127.0.0.1:{server.port}: " in errors
    assert "Authentication" in errors
    assert "wrong@" not in errors


def test_a_store_that_hangs_is_given_up_in_time(server: RedisServer) -> None:
    server.pause()
    try:
        began = time.monotonic()
        status, _, errors = run("show", "--timeout", "0.3")
        assert time.monotonic() - began < 3
    finally:
        server.resume()
    assert status == 1
    assert "Timeout" in errors


def test_a_terminal_sees_a_bar_and_a_pipe_does_not(server: RedisServer, tmp_path: Path) -> None:
    put(server, vllm(FIRST), sglang())
    command = [sys.executable, "-m", "app.cli", "state", "export", str(tmp_path / "state")]
    environ = {**os.environ, "TERM": "xterm"}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, timeout=60, check=True)
    assert done.stderr == b""
    ours, theirs = pty.openpty()
    try:
        subprocess.run(command, cwd=ROOT, env=environ, stdout=subprocess.DEVNULL, stderr=theirs, timeout=60, check=True)
        assert b"exporting" in os.read(ours, 10_000)
    finally:
        os.close(ours)
        os.close(theirs)
