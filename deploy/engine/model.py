"""A tiny decoder-only transformer with random weights, whose KV lies in slots: cached KV is really reused.

Pre-norm blocks, rotary positions, float32 on the CPU. The output head is not the embedding's transpose: with random
weights that would repeat the last token. Needs the extra `engine` (torch).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.nn import functional

LAYERS = 2
HEADS = 4
HEAD_SIZE = 32
WIDTH = HEADS * HEAD_SIZE
QUERY_ROWS = 256
"""Queries attended at a time, which bounds the memory of a long chunk."""


class Part(NamedTuple):
    """A sequence's part in a forward pass: the tokens from position `start` on, and the slots of all up to the last."""

    tokens: list[int]
    start: int
    slots: list[int]


class Model:
    """The weights, which depend on the seed and the vocabulary's size only, and the KV of all slots."""

    def __init__(self, vocabulary: int, slots: int, seed: int = 0) -> None:
        random = torch.Generator().manual_seed(seed)

        def weights(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=random) / math.sqrt(shape[-1])

        self._vocabulary = vocabulary
        self._embedding = torch.randn((vocabulary, WIDTH), generator=random)
        self._head = weights(vocabulary, WIDTH)
        self._layers = [
            _Layer(
                weights(3 * WIDTH, WIDTH), weights(WIDTH, WIDTH), weights(2 * WIDTH, WIDTH), weights(WIDTH, 2 * WIDTH)
            )
            for _ in range(LAYERS)
        ]
        self._keys = torch.zeros((LAYERS, slots, HEADS, HEAD_SIZE))
        self._values = torch.zeros((LAYERS, slots, HEADS, HEAD_SIZE))

    def forward(self, parts: Sequence[Part]) -> torch.Tensor:
        """Write the KV of all parts' tokens to their slots; the logits after each part's last token, a row each.

        The KV of the positions before `start` must have been written, by whichever request. Ids beyond the vocabulary
        are taken modulo its size.
        """
        with torch.inference_mode():
            tokens = torch.tensor([token % self._vocabulary for part in parts for token in part.tokens])
            positions = torch.cat([torch.arange(part.start, len(part.slots)) for part in parts])
            hidden = self._embedding[tokens]
            for number in range(LAYERS):
                hidden = self._layer(number, hidden, positions, parts)
            ends = torch.tensor([len(part.tokens) for part in parts]).cumsum(0) - 1
            return _norm(hidden[ends]) @ self._head.T

    def _layer(self, number: int, hidden: torch.Tensor, positions: torch.Tensor, parts: Sequence[Part]) -> torch.Tensor:
        layer = self._layers[number]
        projected = (_norm(hidden) @ layer.qkv.T).view(-1, 3, HEADS, HEAD_SIZE)
        queries, keys = _rotated(projected[:, 0], positions), _rotated(projected[:, 1], positions)
        written = torch.tensor([slot for part in parts for slot in part.slots[part.start :]])
        self._keys[number, written], self._values[number, written] = keys, projected[:, 2]
        attended = torch.cat(
            [self._attended(number, rows, part) for rows, part in zip(_split(queries, parts), parts, strict=True)]
        )
        hidden = hidden + attended @ layer.out.T
        return hidden + functional.silu(_norm(hidden) @ layer.up.T) @ layer.down.T

    def _attended(self, number: int, queries: torch.Tensor, part: Part) -> torch.Tensor:
        """What a part's tokens see: all positions up to their own, read from the slots."""
        slots = torch.tensor(part.slots)
        keys, values = self._keys[number, slots].transpose(0, 1), self._values[number, slots].transpose(0, 1)
        rows = []
        for first in range(0, len(queries), QUERY_ROWS):
            block = queries[first : first + QUERY_ROWS]
            own = torch.arange(part.start + first, part.start + first + len(block))
            seen = torch.arange(len(slots))[None, :] <= own[:, None]
            mixed = functional.scaled_dot_product_attention(block.transpose(0, 1), keys, values, attn_mask=seen)
            rows.append(mixed.transpose(0, 1).reshape(-1, WIDTH))
        return torch.cat(rows)


class _Layer(NamedTuple):
    qkv: torch.Tensor
    out: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor


def _norm(hidden: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(hidden, (WIDTH,))


def _split(rows: torch.Tensor, parts: Sequence[Part]) -> Sequence[torch.Tensor]:
    pieces: Sequence[torch.Tensor] = rows.split([len(part.tokens) for part in parts])
    return pieces


def _rotated(heads: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding of `[token, head, channel]`."""
    half = HEAD_SIZE // 2
    frequencies = 10_000.0 ** (-torch.arange(half) / half)
    angles = (positions[:, None] * frequencies)[:, None, :]
    first, second = heads[..., :half], heads[..., half:]
    return torch.cat(
        [first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], dim=-1
    )
