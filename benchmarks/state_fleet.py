"""A fleet for the benchmarks of the state store: engines that publish genuine events, and a real `kvroute serve`."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import httpx
import yaml

from benchmarks.readings import cpu_s
from index.block_hash import HashIdentity
from index.worker import Worker
from store.keys import worker_keys
from tests.support.engine_events import BLOCK, vllm_removed, vllm_stored
from tests.support.publisher import Publisher, batch
from tests.support.redis_server import RedisServer

IDENTITY = HashIdentity("sha256_cbor", "0")
LIMIT_S = 120.0


def tokens_of(seed: int, blocks: int) -> array[int]:
    """A prompt of whole blocks; another seed's differs from its first block on."""
    drawn = array("H", random.Random(seed).randbytes(blocks * BLOCK * 2))
    return array("I", drawn)


def stored_payload(tokens: array[int], removed: array[int] | None = None) -> bytes:
    """The batch in which a vLLM engine announces a prompt's blocks (and that another's are gone), genuinely hashed."""
    events = [vllm_stored(list(tokens), IDENTITY)]
    if removed is not None:
        events.append(vllm_removed(vllm_stored(list(removed), IDENTITY)))
    return batch(events=events)


def stored_up_to(server: RedisServer, workers: int) -> int:
    """The number of the batch up to which the state of every worker is stored; -1: there is one without."""
    ends = []
    for number in range(workers):
        keys = worker_keys(Worker(f"vllm-{number}", 0))
        log = server.command("XREVRANGE", keys.log, "+", "-", "COUNT", 1)
        snapshot = server.command("HGET", keys.snapshot, "s")
        ends.append(-1 if snapshot is None else int(log[0][0].split(b"-")[1]) if log else int(snapshot))
    return min(ends)


class Engines:
    """Publishers with their replay buffers, all in this process. They answer no HTTP, so no process has a name: that
    an engine is still the same is shown by the last stored batch, which its replay serves again."""

    def __init__(self, count: int) -> None:
        self.publishers = [Publisher() for _ in range(count)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for publisher in self.publishers:
            publisher.close()

    def instances(self) -> list[dict[str, Any]]:
        """Their settings."""
        return [
            {
                "id": f"vllm-{number}",
                "engine": "vllm",
                "model": "m",
                "url": f"http://127.0.0.1:9/{number}",
                "events": publisher.events,
                "replay": publisher.replay,
            }
            for number, publisher in enumerate(self.publishers)
        ]


class Router:
    """A running `kvroute serve`."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, log: Path, began: float) -> None:
        self.process = process
        self.began = began
        self.http = httpx.Client(base_url=url, timeout=LIMIT_S, trust_env=False)
        self._log = log

    def cpu_s(self) -> float:
        """CPU time that the process has used."""
        return cpu_s(self.process.pid)

    def logged_at(self, event: str) -> float:
        """Unix time of the first log entry with this text."""
        for line in self._log.read_text().splitlines():
            entry = json.loads(line)
            if event in str(entry["event"]).lower():
                return datetime.fromisoformat(entry["time"]).timestamp()
        raise SystemExit(f"never logged: {event}\n{self._log.read_text()[-3000:]}")

    def candidates(self, tokens: array[int]) -> list[dict[str, Any]]:
        """What each worker holds of a prompt; nothing while the router does not answer yet."""
        body, headers = tokens.tobytes(), {"content-type": "application/octet-stream"}
        try:
            answer = self.http.post("/index/match?model=m", content=body, headers=headers)
        except httpx.TransportError:
            return []
        found: list[dict[str, Any]] = answer.json()["candidates"] if answer.status_code == 200 else []
        return found

    def wait_for_exact(self, tokens: array[int], workers: int) -> float:
        """Unix time at which every worker was answered for exactly: trusted, and with this prompt, its newest."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end and self.process.poll() is None:
            found = self.candidates(tokens)
            if len(found) == workers and all(
                one["trust"] == "exact" and one["matched_tokens"] == len(tokens) for one in found
            ):
                return time.time()
            time.sleep(0.02)
        raise SystemExit(f"never exact: {self.candidates(tokens)[:2]}\n{self._log.read_text()[-3000:]}")


@contextmanager
def serving(folder: Path, port: int, instances: list[dict[str, Any]], **settings: object) -> Iterator[Router]:
    """A `kvroute serve` with these engines, killed (-9) at the end."""
    quiet = {"load_interval_s": 3600.0, "discovery_interval_s": 3600.0}
    tree = {"instances": instances, "polling": quiet, "hash": {"algorithm": "sha256_cbor", "seed": "0"}, **settings}
    config, log = folder / "fleet.yaml", folder / "log"
    config.write_text(yaml.safe_dump(tree))
    command = [sys.executable, "-m", "app.cli", "serve", "--config", str(config), "--port", str(port)]
    with log.open("wb") as errors:
        began = time.time()
        process = subprocess.Popen(command, stderr=errors, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    router = Router(process, f"http://127.0.0.1:{port}", log, began)
    try:
        yield router
    finally:
        process.kill()
        process.wait(20)
        router.http.close()
