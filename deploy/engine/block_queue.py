"""The block pool's free blocks in the order in which they are handed out: unused first, then least recently used."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class FreeQueue:
    """Numbers of free blocks. The front goes first; any of them can be taken out when its content is wanted again.

    Mirrors vllm/v1/core/kv_cache_utils.py:FreeKVCacheBlockQueue.
    """

    def __init__(self, blocks: Iterable[int]) -> None:
        self._order = OrderedDict.fromkeys(blocks)

    def __len__(self) -> int:
        return len(self._order)

    def take(self) -> int:
        """The block to reuse next. KeyError when there is none."""
        return self._order.popitem(last=False)[0]

    def rescue(self, block: int) -> None:
        """Take a certain free block out: its content is hit."""
        del self._order[block]

    def give_back(self, empty: Iterable[int], cached: Iterable[int]) -> None:
        """`empty` blocks are reused before all others, `cached` ones after all others, each in the given order."""
        for block in reversed(list(empty)):
            self._order[block] = None
            self._order.move_to_end(block, last=False)
        self._order.update(OrderedDict.fromkeys(cached))
