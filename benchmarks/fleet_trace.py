"""The production trace as requests: arrival times and prompts in which equal prefixes are equal.

The trace names each 512-token block of a prompt by an id. A *unit* stands for 32 tokens, so a block is 16 units: the
caches, the index and the router work on units and all results are told in tokens. That keeps the trace's granularity
(a hit is whole blocks of 512 tokens) and makes a simulation 30 times cheaper.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

UNIT_TOKENS: Final = 32
BLOCK_UNITS: Final = 16
BLOCK_TOKENS: Final = UNIT_TOKENS * BLOCK_UNITS
TICK_S: Final = 3.0
"""The trace's clock ticks so: all requests of a tick have one timestamp."""

DEFAULT: Final = Path(__file__).parents[1] / "../shared/traces/conversation_trace.jsonl"


class Arrival(NamedTuple):
    """One request. `at_s` is when it comes, `prompt` in units, `output` in units that occur nowhere else."""

    at_s: float
    prompt: list[int]
    output: list[int]
    prompt_tokens: int
    output_tokens: int


def trace_path() -> Path:
    """KVROUTE_TRACE, or where the trace lies beside a checkout."""
    return Path(os.environ.get("KVROUTE_TRACE", DEFAULT))


def read_trace(path: Path, limit: int | None = None, seed: int = 0) -> list[Arrival]:
    """The trace's requests (the first `limit`), in order of arrival.

    The requests of a tick are spread over it at random, or each tick would begin with a burst that was none.
    """
    random, arrivals = Random(seed), []
    next_output = 1 << 31
    with path.open() as lines:
        for _, line in zip(range(limit if limit is not None else 1 << 62), lines, strict=False):
            row = json.loads(line)
            output_tokens = max(1, row["output_length"])
            length = units(output_tokens)
            output = list(range(next_output, next_output + length))
            next_output += length
            prompt = prompt_units(row["hash_ids"], row["input_length"])
            at_s = row["timestamp"] / 1000 + random.uniform(0, TICK_S)
            arrivals.append(Arrival(at_s, prompt, output, row["input_length"], output_tokens))
    return sorted(arrivals, key=lambda arrival: arrival.at_s)


def units(tokens: int) -> int:
    """So many units hold these tokens; the last one may be partial."""
    return -(-tokens // UNIT_TOKENS)


def prompt_units(hash_ids: list[int], prompt_tokens: int) -> list[int]:
    """The units of a prompt: equal ids give equal units, other ids other ones."""
    whole = [unit for block in hash_ids for unit in range(block * BLOCK_UNITS, (block + 1) * BLOCK_UNITS)]
    return whole[: units(prompt_tokens)]
