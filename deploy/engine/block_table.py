"""Which cached block holds which content: block hashes to blocks, with every copy of a content."""

from __future__ import annotations


class BlockTable:
    """Cached blocks by hash and back. Equal blocks are not merged: each copy has an entry, the oldest one serves.

    Mirrors vllm/v1/core/block_pool.py:BlockHashToBlockMap.
    """

    def __init__(self) -> None:
        self._copies: dict[bytes, dict[int, None]] = {}
        self._digests: dict[int, bytes] = {}

    def __contains__(self, block: int) -> bool:
        return block in self._digests

    def find(self, digest: bytes) -> int | None:
        """The block that serves a hit on this content."""
        copies = self._copies.get(digest)
        return None if copies is None else next(iter(copies))

    def add(self, digest: bytes, block: int) -> None:
        """The block now holds this content."""
        assert block not in self._digests
        self._digests[block] = digest
        self._copies.setdefault(digest, {})[block] = None

    def drop(self, block: int) -> bytes | None:
        """The block's content is lost; returns its hash, None when it was not cached."""
        digest = self._digests.pop(block, None)
        if digest is not None:
            copies = self._copies[digest]
            del copies[block]
            if not copies:
                del self._copies[digest]
        return digest
