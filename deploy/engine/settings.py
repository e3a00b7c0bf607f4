"""The engine's settings, from its command line and PYTHONHASHSEED."""

from __future__ import annotations

import argparse
import math
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from index.block_hash import ALGORITHMS, HashIdentity

Face = Literal["vllm", "sglang"]

DEFAULT_BLOCK_SIZES = {"vllm": 16, "sglang": 1}
DEFAULT_STEP_TOKENS = {"vllm": 2048, "sglang": 8192}

_RANGES: Final = (
    ("port", 0, 65_535),
    ("events_port", 1, 65_535),
    ("replay_port", 1, 65_535),
    ("buffer_steps", 1, 10_000_000),
    ("dp_size", 1, 64),
    ("block_size", 1, 4096),
    ("max_model_len", 2, math.inf),
    ("max_running", 1, 65_536),
    ("max_queued", 0, math.inf),
    ("decode_log_interval", 1, math.inf),
    ("prefill_us", 0, 1e7),
    ("decode_us", 0, 6e7),
    ("mean_output_tokens", 0, math.inf),
)
"""Bounds of the numbers; NaN is within none."""


@dataclass(frozen=True)
class EngineSettings:
    """What an engine is. Lengths are in tokens; `cache_tokens` is the KV cache of one rank."""

    face: Face
    model: str = "tiny"
    host: str = "127.0.0.1"
    port: int = 8000
    events_port: int | None = None
    replay_port: int | None = None
    topic: str = ""
    buffer_steps: int = 10_000
    dp_size: int = 1
    block_size: int = 16
    cache_tokens: int = 65_536
    hash_algorithm: str = "sha256"
    hash_seed: str | None = None
    policy: str = "lru"
    eagle: bool = False
    dynamo: bool = False
    adapters: dict[str, str] = field(default_factory=dict)
    max_model_len: int = 32_768
    max_running: int = 64
    max_queued: int | None = None
    step_tokens: int = 2048
    decode_log_interval: int = 40
    compute: Literal["timed", "torch"] = "timed"
    prefill_us: float = 50.0
    decode_us: float = 5000.0
    seed: int = 0
    mean_output_tokens: int = 256

    def __post_init__(self) -> None:
        """ValueError for what cannot run, with the option, its value and what is allowed."""
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                allowed = f"{low:g} to {high:g}" if high < math.inf else f"{low:g} or more"
                raise ValueError(f"--{name.replace('_', '-')} is {value:g}; allowed: {allowed}")
        if self.cache_tokens < 2 * self.block_size or self.step_tokens < self.block_size:
            raise ValueError(
                f"--cache-tokens is {self.cache_tokens} and --step-tokens {self.step_tokens}: the cache must hold two"
                f" blocks or more and a step one, and --block-size is {self.block_size}"
            )
        if (self.events_port is None) != (self.replay_port is None):
            raise ValueError("--events-port and --replay-port go together: give both or neither")
        if self.events_port and self.replay_port and abs(self.events_port - self.replay_port) < self.dp_size:
            raise ValueError(
                f"--events-port {self.events_port} and --replay-port {self.replay_port} are less than --dp-size"
                f" {self.dp_size} apart: rank r uses port + r of each"
            )

    @property
    def context(self) -> int:
        """The longest prompt and output together: one request must always fit into the cache."""
        return min(self.max_model_len, self.cache_tokens - self.block_size)

    def hash_identity(self) -> HashIdentity:
        """The identity of one rank: as in vLLM, xxhash without PYTHONHASHSEED has a random seed per rank."""
        if self.hash_seed is None and self.hash_algorithm.startswith("xxhash"):
            return HashIdentity(self.hash_algorithm, secrets.token_hex(32))
        return HashIdentity(self.hash_algorithm, self.hash_seed)


def read_settings(arguments: Sequence[str] | None = None) -> EngineSettings:
    """Parse the command line; exits with status 2 and a reason when it is wrong."""
    parser = _parser()
    given = {name: value for name, value in vars(parser.parse_args(arguments)).items() if value is not None}
    face = given["face"]
    given["adapters"] = dict(given.pop("adapter", []))
    given.setdefault("block_size", DEFAULT_BLOCK_SIZES[face])
    given.setdefault("step_tokens", DEFAULT_STEP_TOKENS[face])
    try:
        return EngineSettings(hash_seed=os.environ.get("PYTHONHASHSEED"), **given)
    except ValueError as error:
        parser.error(str(error))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m deploy.engine", description=__doc__, argument_default=None)
    add = parser.add_argument
    add("--face", choices=["vllm", "sglang"], required=True, help="which engine's HTTP interface, cache and events")
    add("--model", help="the name it serves (tiny)")
    add("--host", help="address of all sockets (127.0.0.1)")
    add("--port", type=int, help="HTTP (8000)")
    add("--events-port", type=int, help="KV events; rank r at port + r; none: no events")
    add("--replay-port", type=int, help="their replay; rank r at port + r")
    add("--topic", help="their topic (empty)")
    add("--buffer-steps", type=int, help="batches kept for replay (10000)")
    add("--dp-size", type=int, help="data-parallel ranks, each with a cache of its own (1)")
    add("--block-size", type=int, help="tokens per block (vllm: 16) or page (sglang: 1)")
    add("--cache-tokens", type=int, help="KV cache of a rank, in tokens (65536)")
    add("--hash-algorithm", choices=ALGORITHMS, help="vllm: block hashes (sha256); the seed is PYTHONHASHSEED")
    add("--policy", choices=["lru", "lfu", "fifo", "mru", "filo", "slru"], help="sglang: eviction (lru)")
    add("--eagle", action="store_true", default=None, help="sglang: keys are pairs of tokens")
    add("--dynamo", action="store_true", default=None, help='sglang: events of "format": "dynamo"')
    add("--adapter", action="append", type=_adapter, metavar="NAME=PATH", help="a LoRA adapter to serve")
    add("--max-model-len", type=int, help="prompt and output together (32768, at most the cache less a block)")
    add("--max-running", type=int, help="requests that hold KV (64)")
    add("--max-queued", type=int, help="requests that may wait, per rank; beyond: 503 (no limit)")
    add("--step-tokens", type=int, help="tokens of a step (vllm: 2048), of its prefills (sglang: 8192)")
    add("--decode-log-interval", type=int, help="sglang: decode steps between event batches (40)")
    add("--compute", choices=["timed", "torch"], help="timed: prefill and decode take time, outputs are pseudo-random")
    add("--prefill-us", type=float, help="timed: microseconds per computed prefill token (50)")
    add("--decode-us", type=float, help="timed: microseconds per decode step, a token for each request (5000)")
    add("--seed", type=int, help="of outputs or weights (0)")
    add("--mean-output-tokens", type=int, help="timed: how far the end token is on average; 0: never (256)")
    return parser


def _adapter(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise argparse.ArgumentTypeError("NAME=PATH")
    return name, path
