"""Recorded event streams of real engines, as files: what they published, batch by batch.

They come from the engines' own cache and publisher code, run without a model; the tokens are random.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

RECORDINGS = Path(__file__).parent / "recordings"


class Recording(NamedTuple):
    """A stream from its first batch on: `payloads[n]` has the sequence number n. `block_size` is in tokens."""

    engine: str
    version: str
    topic: str
    block_size: int
    payloads: list[bytes]


class Prompt(NamedTuple):
    """A prompt to ask for. `fields` are those of `POST /route` beside the tokens.

    `engine_reused`: per instance, how many of the tokens the recorded engine itself said it would reuse.
    """

    about: str
    token_ids: list[int]
    fields: dict[str, Any]
    engine_reused: dict[str, int]


def read_recording(file: Path) -> Recording:
    """A recording of `RECORDINGS`: a line about the engine, then a line per batch."""
    header, *batches = [json.loads(line) for line in file.read_text().splitlines()]
    assert [batch["seq"] for batch in batches] == list(range(len(batches))), f"{file} has holes"
    payloads = [base64.b64decode(batch["payload"]) for batch in batches]
    return Recording(header["engine"], header["version"], header["topic"], header["block_size"], payloads)


def read_prompts(part: str) -> list[Prompt]:
    """The prompts of a part of the demo: "first" or "then"."""
    tree = json.loads((RECORDINGS / "prompts.json").read_text())
    return [Prompt(**prompt) for prompt in tree[part]]


def published_at(payload: bytes, timestamp: float) -> bytes:
    """The same batch with another time of publishing (seconds since 1970)."""
    _, *rest = msgspec.msgpack.decode(payload, type=list[msgspec.Raw])
    return msgspec.msgpack.encode([timestamp, *rest])
