"""What a request asks for and what the index answers: a prompt and, per worker, how much of it lies in its cache."""

from __future__ import annotations

from typing import NamedTuple

from index.worker import Worker


class MultimodalItem(NamedTuple):
    """One image, audio or video item: the engine's identifier and its token span, both in tokens of the prompt."""

    identifier: str
    offset: int
    length: int


class Prompt(NamedTuple):
    """A prompt as the engine will see it. `tokens` are little-endian u32 ids, 4 bytes each."""

    tokens: bytes
    lora: str | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    mm_items: tuple[MultimodalItem, ...] = ()
    lora_path: str | None = None

    @property
    def length(self) -> int:
        """The prompt's length in tokens."""
        return len(self.tokens) >> 2


class WorkerMatch(NamedTuple):
    """How much of a prompt one worker holds, in tokens.

    `matched` is the depth of the leading run; `by_medium` splits it over (gpu, cpu, disk, other), each token at its
    fastest tier, so it sums to `matched`. `reusable` is what the engine will skip, by its own rule.
    """

    worker: Worker
    matched: int
    reusable: int
    by_medium: tuple[int, int, int, int]
