"""The radix cache's free slots, in whole pages."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class PagePool:
    """Slots of `pages` pages. Page 0 is never handed out, as in SGLang's allocators (padding writes go there)."""

    def __init__(self, pages: int, page_size: int) -> None:
        assert pages > 0
        self.page_size = page_size
        self.pages = pages
        self._free = deque(range(1, pages + 1))

    @property
    def free_slots(self) -> int:
        return len(self._free) * self.page_size

    def take(self, pages: int) -> list[int]:
        """The slots of that many pages. There must be as many."""
        size = self.page_size
        return [page * size + offset for page in (self._free.popleft() for _ in range(pages)) for offset in range(size)]

    def give_back(self, slots: Iterable[int]) -> None:
        """Free the pages of these slots; a page counts by its first slot."""
        size = self.page_size
        self._free.extend(slot // size for slot in slots if slot % size == 0)
