"""What computes a step: the model, or the time that one would take."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

import xxhash

from deploy.engine.byte_pairs import END, BytePairs
from deploy.engine.request import Request
from deploy.engine.scheduler import Work


class Compute(Protocol):
    """Computes the pending positions of a step's works."""

    async def run(self, works: Sequence[Work]) -> list[int]:
        """The tokens that the works which sample have sampled, in their order."""


class TimedCompute:
    """No model: a step takes `prefill_us` for each prefill token plus `decode_us` if it decodes, however many requests
    (each gets one token in that time).

    Sampled tokens follow from all tokens before them and the seed, like a model's at temperature 0, so a prompt that
    goes on from an answer goes on alike. They are whole words, which a text that comes back is encoded to again. The
    end token comes with a chance of 1 in `mean_output_tokens`, never if that is 0.
    """

    def __init__(
        self, tokenizer: BytePairs, prefill_us: float, decode_us: float, seed: int = 0, mean_output_tokens: int = 0
    ) -> None:
        self._words = tokenizer.word_tokens()
        self._prefill_s, self._decode_s = prefill_us / 1e6, decode_us / 1e6
        self._seed = seed
        self._mean = mean_output_tokens
        self._read: WeakKeyDictionary[Request, _Reading] = WeakKeyDictionary()

    async def run(self, works: Sequence[Work]) -> list[int]:
        prefill = sum(len(work.sequence.pending) for work in works if not work.decode)
        decodes = any(work.decode for work in works)
        await asyncio.sleep(prefill * self._prefill_s + decodes * self._decode_s)
        return [self._sample(work.request) for work in works if work.samples]

    def _sample(self, request: Request) -> int:
        reading = self._read.setdefault(request, _Reading(self._seed))
        number = reading.number([*request.prompt, *request.output] if not reading.length else request.output[-1:])
        may_end = not request.sampling.ignore_eos and len(request.output) >= request.sampling.min_tokens
        if self._mean and may_end and number % self._mean == 0:
            return END
        return self._words[(number >> 32) % len(self._words)]


class _Reading:
    """A running hash of a request's tokens."""

    def __init__(self, seed: int) -> None:
        self._hash = xxhash.xxh3_64(seed=seed)
        self.length = 0

    def number(self, tokens: list[int]) -> int:
        self._hash.update(array("I", tokens).tobytes())
        self.length += len(tokens)
        return self._hash.intdigest()
