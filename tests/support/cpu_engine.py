"""The CPU engine for tests: in a thread of this process, where its insides can be seen, or as a process to kill."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import uvicorn

from deploy.engine.engine import Engine
from deploy.engine.server import create_app
from deploy.engine.settings import EngineSettings, Face
from tests.support.ports import free_ports
from tests.support.service import wait_until

START_S = 20.0
ROOT = Path(__file__).parents[2]
FAST = {"prefill_us": 0.0, "decode_us": 0.0}


class Generated(NamedTuple):
    """The output of a request, and what it found."""

    output: list[int]
    cached_tokens: int


class CpuEngine:
    """A running engine and a client for it."""

    def __init__(self, url: str, engine: Engine) -> None:
        self.url = url
        self.engine = engine
        self.http = httpx.Client(base_url=url, timeout=10.0, trust_env=False)

    def complete(self, prompt: object, headers: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
        """`POST /v1/completions`; the answer of a 200. Up to `max_tokens` whatever the tokens are."""
        body = {"prompt": prompt, "max_tokens": 4, "ignore_eos": True, "return_token_ids": True, **fields}
        answer = self.http.post("/v1/completions", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        said: dict[str, Any] = answer.json()
        return said

    def generated(self, prompt: list[int], max_tokens: int) -> Generated:
        """What comes out of token ids and how many of them were cached, for both faces alike."""
        if self.engine.settings.face == "vllm":
            answer = self.complete(prompt, max_tokens=max_tokens)
            cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            return Generated(answer["choices"][0]["token_ids"], cached)
        params = {"max_new_tokens": max_tokens, "ignore_eos": True}
        said = self.http.post("/generate", json={"input_ids": prompt, "sampling_params": params}).json()
        return Generated(said["output_ids"], said["meta_info"]["cached_tokens"])

    def last_seq(self, rank: int = 0) -> int | None:
        """The number of the last batch that a rank has published; None before any."""
        publisher = self.engine.ranks[rank].publisher
        assert publisher is not None
        return publisher.next_seq - 1 if publisher.next_seq else None

    def busy(self) -> int:
        """The requests running or waiting."""
        return sum(len(rank.scheduler.running) + len(rank.scheduler.waiting) for rank in self.engine.ranks)


@contextmanager
def cpu_engine(face: Face, **fields: Any) -> Iterator[CpuEngine]:
    """An engine in a thread, on free ports; everything is closed afterwards."""
    ranks = fields.get("dp_size", 1)
    events, replay = free_ports(ranks), free_ports(ranks)
    settings = EngineSettings(face, events_port=events, replay_port=replay, **{**FAST, **fields})
    started: list[CpuEngine] = []
    listening = socket.socket(
        socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )  # named, or asyncio delays answers
    listening.bind(("127.0.0.1", 0))
    server: list[uvicorn.Server] = []

    async def serve() -> None:
        app = create_app(settings)
        config = uvicorn.Config(app, log_config=None, access_log=False, ws="none", timeout_graceful_shutdown=2)
        server.append(uvicorn.Server(config))
        started.append(CpuEngine(f"http://127.0.0.1:{listening.getsockname()[1]}", app.state.engine))
        await server[0].serve(sockets=[listening])

    thread = threading.Thread(target=asyncio.run, args=(serve(),), name="cpu engine", daemon=True)
    thread.start()
    try:
        wait_until(lambda: bool(started) and server[0].started, START_S, lambda: "the engine did not start")
        yield started[0]
    finally:
        for one in started:
            one.http.close()
        if server:
            server[0].should_exit = True
        thread.join(10.0)
        listening.close()
        assert not thread.is_alive()


class EngineProcess:
    """`python -m deploy.engine` as a process that can be killed and started again on the same ports."""

    def __init__(self, *arguments: str) -> None:
        self.port, self.events, self.replay = free_ports(1), free_ports(2), free_ports(2)
        self.use_events = True
        self._arguments = arguments
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers."""
        command = [sys.executable, "-m", "deploy.engine", *self._arguments, "--port", str(self.port)]
        if self.use_events:
            command += ["--events-port", str(self.events), "--replay-port", str(self.replay)]
        self._process = process = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": "0"})
        wait_until(lambda: process.poll() is not None or self.answers(), START_S, lambda: "no answer")
        assert process.poll() is None

    def answers(self) -> bool:
        """Whether it is healthy."""
        try:
            return httpx.get(f"{self.url}/health", timeout=1.0, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    def tell(self, what: signal.Signals) -> None:
        """Send a signal that does not end it."""
        assert self._process is not None
        self._process.send_signal(what)

    def stop(self, how: signal.Signals) -> int:
        """Send the signal; the exit status."""
        assert self._process is not None
        self.tell(how)
        return self._process.wait(10.0)

    def close(self) -> None:
        """End it if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(10.0)


def drained(engine: CpuEngine, seq_of: Callable[[int], int | None], timeout_s: float = 10.0) -> None:
    """Until a router has applied everything that the engine's ranks have published; `seq_of` a rank is where it is."""
    for rank in range(len(engine.engine.ranks)):
        wait_until(lambda r=rank: seq_of(r) == engine.last_seq(r), timeout_s, lambda: "the router lags")  # type: ignore[misc]
