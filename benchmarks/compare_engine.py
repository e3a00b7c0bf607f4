"""One side of `compare_live`: an engine over HTTP, real or not, and the KV events that it can replay."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import zmq

from benchmarks.compare_asks import Ask
from deploy.engine.settings import Face

ANSWER_S = 60.0
REPLAY_S = 10.0


class Answered(NamedTuple):
    """What an engine reports of a request, and prompt and output as it saw them."""

    prompt_tokens: int
    cached_tokens: int
    tokens: list[int]


class Traits(NamedTuple):
    """What two engines must have in common to be compared."""

    block_size: int
    cache_tokens: int
    hash_algorithm: str
    step_tokens: int | None


class ComparedEngine:
    """A vLLM or SGLang face at a URL. httpx.HTTPError when it does not answer as it should."""

    def __init__(self, face: Face, url: str) -> None:
        self.face = face
        self.url = url
        self._http = httpx.Client(base_url=url, timeout=ANSWER_S, trust_env=False)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def traits(self) -> Traits:
        """As `/metrics` (vLLM) or `/server_info` (SGLang) tell. vLLM's first block is never used."""
        if self.face == "sglang":
            said = self._get("/server_info")
            return Traits(said["page_size"], said["max_total_num_tokens"], "", said.get("chunked_prefill_size"))
        lines = self._http.get("/metrics").raise_for_status().text.splitlines()
        line = next(line for line in lines if line.startswith("vllm:cache_config_info{"))
        labels = dict(pair.split("=", 1) for pair in line[line.index("{") + 1 : line.index("}")].split(","))
        values = {name: text.strip('"') for name, text in labels.items()}
        size = int(values["block_size"])
        return Traits(size, (int(values["num_gpu_blocks"]) - 1) * size, values["prefix_caching_hash_algo"], None)

    def empty(self) -> None:
        """Empty its cache. httpx.HTTPStatusError when it has no way to (vLLM without VLLM_SERVER_DEV_MODE=1)."""
        path = "/reset_prefix_cache" if self.face == "vllm" else "/flush_cache?timeout=5"
        self._http.post(path).raise_for_status()

    def tokenized(self, ask: Ask) -> list[int]:
        """The ids that a text or chat has here."""
        body = {"model": "tiny", "prompt": ask.text} if ask.text is not None else {"messages": ask.chat}
        tokens: list[int] = self._post("/tokenize", {"model": "tiny", **body})["tokens"]
        return tokens

    def words(self, ask: Ask) -> Answered:
        """Send a text or a chat as it is."""
        if ask.chat is not None:
            said = self._post("/v1/chat/completions", {"model": "tiny", "messages": ask.chat, "max_tokens": 1})
        else:
            said = self._post("/v1/completions", {"model": "tiny", "prompt": ask.text, "max_tokens": 1})
        return _usage(said["usage"], [])

    def ids(self, prompt: list[int], ask: Ask) -> Answered:
        """Send token ids."""
        if self.face == "vllm":
            body = {"model": "tiny", "prompt": prompt, "max_tokens": ask.max_tokens, "ignore_eos": True}
            said = self._post("/v1/completions", {**body, "return_token_ids": True, **ask.space})
            return _usage(said["usage"], [*prompt, *said["choices"][0]["token_ids"]])
        params = {"max_new_tokens": ask.max_tokens, "ignore_eos": True, "temperature": 0}
        said = self._post("/generate", {"input_ids": prompt, "sampling_params": params, **ask.space})
        meta = said["meta_info"]
        return Answered(meta["prompt_tokens"], meta["cached_tokens"], [*prompt, *said["output_ids"]])

    def batches(self, first: int = 0) -> list[bytes]:
        """The payloads of all event batches from the number `first` on; TimeoutError, or ValueError with a hole."""
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.set(zmq.LINGER, 0)
            socket.set(zmq.RCVHWM, 0)
            socket.connect(self._replay_endpoint())
            socket.send_multipart([b"", first.to_bytes(8, "big")])
            payloads: list[bytes] = []
            for due in count(first):
                if not socket.poll(int(REPLAY_S * 1000)):
                    raise TimeoutError(f"{self.url}: no end of the replay")
                *_, seq, payload = socket.recv_multipart()
                if seq == b"\xff" * 8:
                    return payloads
                if int.from_bytes(seq, "big") != due:
                    raise ValueError(f"{self.url}: the replay has a hole at {due}")
                payloads.append(payload)
        raise AssertionError

    def _replay_endpoint(self) -> str:
        if self.face == "vllm":
            port = urlsplit(self._get("/kv_event_sources")["0"]["replay_endpoint"]).port
        else:
            port = self._get("/server_info")["kv_events"]["replay_endpoint_port_base"]
        return f"tcp://{urlsplit(self.url).hostname}:{port}"

    def _get(self, path: str) -> dict[str, Any]:
        said: dict[str, Any] = self._http.get(path).raise_for_status().json()
        return said

    def _post(self, path: str, body: dict[str, object]) -> dict[str, Any]:
        answer = self._http.post(path, json=body)
        if answer.is_error:
            raise httpx.HTTPError(f"{self.url}{path} answered {answer.status_code}: {answer.text[:300]}")
        said: dict[str, Any] = answer.json()
        return said


def _usage(usage: dict[str, Any], tokens: Sequence[int]) -> Answered:
    details = usage.get("prompt_tokens_details") or {}
    return Answered(usage["prompt_tokens"], details.get("cached_tokens") or 0, list(tokens))
