"""A `Compute` that runs the model of `model.py`. Needs the extra `engine` (torch)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import torch

from deploy.engine.byte_pairs import END
from deploy.engine.model import Model, Part
from deploy.engine.request import Request
from deploy.engine.scheduler import Work


class TorchCompute:
    """Greedy sampling. A step runs in a thread, so that HTTP and replays are answered meanwhile; on one core."""

    def __init__(self, vocabulary: int, slots: int, seed: int = 0) -> None:
        torch.set_num_threads(1)
        self._model = Model(vocabulary, slots, seed)

    async def run(self, works: Sequence[Work]) -> list[int]:
        parts = [_part(work) for work in works]
        logits = await asyncio.to_thread(self._model.forward, parts)
        return [_greedy(row, work.request) for row, work in zip(logits, works, strict=True) if work.samples]


def _part(work: Work) -> Part:
    sequence, pending = work.sequence, work.sequence.pending
    return Part(sequence.tokens[pending.start : pending.stop], pending.start, sequence.slots[: pending.stop])


def _greedy(logits: torch.Tensor, request: Request) -> int:
    sampling = request.sampling
    if sampling.ignore_eos or len(request.output) < sampling.min_tokens:
        logits = logits.clone()
        logits[END] = -torch.inf
    return int(logits.argmax())
