"""The demo's CPU engines: started, asked, emptied, killed, and how many events they have that nobody has read."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import msgspec
import zmq

from deploy.demo_processes import DemoFailed, DemoProcesses
from deploy.demo_prompts import MAX_TOKENS
from deploy.ports import free_ports

MODEL = "tiny"
PREFILL_US = 400
DECODE_US = 3000
ANSWER_S = 20.0
REPLAY_S = 5.0


class Delivered(NamedTuple):
    """What an engine answered, and how long its first token took."""

    text: str
    prompt_tokens: int
    cached_tokens: int
    first_token_s: float


class DemoEngine:
    """`python -m deploy.engine` on ports of its own, the same ones after a restart."""

    def __init__(self, processes: DemoProcesses, name: str, face: str, hash_seed: str = "0") -> None:
        self.name = name
        self.face = face
        self.url = f"http://127.0.0.1:{(port := free_ports())}"
        self._processes = processes
        self._hash_seed = hash_seed
        self._replay_port = free_ports()
        self._options = ["--face", face, "--port", str(port), "--model", MODEL]
        self._options += ["--events-port", str(free_ports()), "--replay-port", str(self._replay_port)]
        self._options += ["--prefill-us", str(PREFILL_US), "--decode-us", str(DECODE_US)]
        self._options += ["--hash-algorithm", "sha256_cbor"] if face == "vllm" else ["--block-size", "16"]
        self._http = httpx.Client(base_url=self.url, timeout=ANSWER_S, trust_env=False)

    def start(self) -> None:
        """Start it; it does not answer yet."""
        environment = {**os.environ, "PYTHONHASHSEED": self._hash_seed}
        self._processes.start(self.name, ["-m", "deploy.engine", *self._options], environment)

    def kill(self) -> None:
        """SIGKILL, as when a machine goes."""
        self._processes.kill(self.name)

    def answers(self) -> bool:
        """Whether it is healthy."""
        try:
            return self._http.get("/health").status_code == 200
        except httpx.TransportError:
            return False

    def settings(self) -> dict[str, str]:
        """What the router is told; it learns the rest from the engine."""
        return {"id": self.name, "engine": self.face, "model": MODEL, "url": self.url}

    def empty(self) -> None:
        """Drop its cache. DemoFailed when it does not."""
        path = "/reset_prefix_cache" if self.face == "vllm" else "/flush_cache"
        answer = self._http.post(path)
        if answer.is_error or '"success":false' in answer.text:
            raise DemoFailed(f"{self.name}{path} answered {answer.status_code}: {answer.text}")

    def ask(self, prompt: dict[str, Any], headers: dict[str, str]) -> Delivered:
        """Send a prompt and read the stream of its answer. DemoFailed when it is an error."""
        path = "/v1/chat/completions" if "messages" in prompt else "/v1/completions"
        body = {"model": MODEL, "max_tokens": MAX_TOKENS, "ignore_eos": True, **prompt}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        began, first_s, text, usage = time.monotonic(), 0.0, "", dict[str, Any]()
        try:
            with self._http.stream("POST", path, json=body, headers=headers) as answer:
                for chunk in _chunks(answer, self.name):
                    part = _text(chunk)
                    first_s = first_s or (time.monotonic() - began if part else 0.0)
                    text += part
                    usage = chunk.get("usage") or usage
        except httpx.HTTPError as error:
            raise DemoFailed(f"{self.name} gave no answer: {error or type(error).__name__}") from None
        return Delivered(text, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], first_s)

    def published_after(self, seq: int | None) -> int:
        """How many batches of events it has published after the number `seq` (None: all), by its replay socket."""
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.set(zmq.LINGER, 0)
            socket.connect(f"tcp://127.0.0.1:{self._replay_port}")
            socket.send_multipart([b"", (0 if seq is None else seq + 1).to_bytes(8, "big")])
            count = 0
            while socket.poll(int(REPLAY_S * 1000)):
                if socket.recv_multipart()[-2] == b"\xff" * 8:
                    return count
                count += 1
        raise DemoFailed(f"{self.name} does not replay its events")

    def close(self) -> None:
        """Close the connections to it."""
        self._http.close()


def _chunks(answer: httpx.Response, name: str) -> Iterator[dict[str, Any]]:
    if answer.status_code != 200:
        raise DemoFailed(f"{name} answered {answer.status_code}: {answer.read().decode()}")
    for line in answer.iter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield msgspec.json.decode(line[6:])


def _text(chunk: dict[str, Any]) -> str:
    choices = chunk.get("choices") or [{}]
    text: str = choices[0].get("text") or choices[0].get("delta", {}).get("content") or ""
    return text
