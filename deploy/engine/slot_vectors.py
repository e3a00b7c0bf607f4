"""The one seam to torch in the caches: how the radix cache keeps the slot indices of a node."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Protocol, cast


class SlotVector(Protocol):
    """A vector of slot indices: a `torch.Tensor` of int64, or an array without torch."""

    def __len__(self) -> int: ...

    def tolist(self) -> list[int]:
        """The indices as plain numbers."""


MakeVector = Callable[[Sequence[int]], SlotVector]


def array_vector(slots: Sequence[int]) -> SlotVector:
    """Slot indices without torch."""
    return array("q", slots)


def tensor_vector(slots: Sequence[int]) -> SlotVector:
    """Slot indices as SGLang has them: a one-dimensional int64 tensor. Needs the extra `engine` (torch)."""
    torch = import_module("torch")
    return cast("SlotVector", torch.tensor(slots, dtype=torch.int64))
