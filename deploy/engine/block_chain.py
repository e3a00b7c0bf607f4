"""The block hashes of a growing sequence, and the event that announces some of its blocks."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from deploy.engine.cache import PLAIN, Namespace
from index.block_hash import HashIdentity, TaggedKey, block_hash, extra_keys_of, none_hash, wire_uint64
from index.event import BlockStored, EngineHash, ExtraKey


@dataclass(eq=False)
class BlockChain:
    """The hashes of a sequence's full blocks, first to last; `grow` adds those that its tokens have completed."""

    identity: HashIdentity
    block_size: int
    namespace: Namespace
    digests: list[bytes] = field(default_factory=list)
    extras: list[tuple[TaggedKey, ...] | None] = field(default_factory=list)

    def grow(self, tokens: list[int], length: int) -> None:
        """Hash the blocks that the first `length` tokens fill."""
        size, full = self.block_size, length // self.block_size
        if full <= len(self.digests):
            return
        self._add_extras(full)
        for number in range(len(self.digests), full):
            parent = self.digests[-1] if self.digests else none_hash(self.identity)
            block = tokens[number * size : (number + 1) * size]
            self.digests.append(block_hash(self.identity.algorithm, parent, block, self.extras[number]))

    def stored(self, tokens: list[int], first: int, end: int, int_hashes: bool) -> BlockStored:
        """The event for blocks `first` to `end` (`BlockPool.cache_full_blocks`)."""
        return BlockStored(
            block_hashes=[wire_hash(digest, int_hashes) for digest in self.digests[first:end]],
            parent=wire_hash(self.digests[first - 1], int_hashes) if first else None,
            tokens=array("I", tokens[first * self.block_size : end * self.block_size]).tobytes(),
            block_size=self.block_size,
            lora_name=self.namespace.lora[0] if self.namespace.lora else None,
            extra_keys=[_untagged(extra) for extra in self.extras[first:end]],
            kind="full_attention",
        )

    def _add_extras(self, full: int) -> None:
        if self.namespace == PLAIN:
            self.extras.extend([None] * (full - len(self.extras)))
            return
        space = self.namespace
        self.extras = extra_keys_of(
            full * self.block_size,
            self.block_size,
            lora=space.lora,
            cache_salt=space.cache_salt,
            mm_items=space.mm_items,
        )


def wire_hash(digest: bytes, int_hashes: bool) -> EngineHash:
    """The form of a hash in events: 64 bits, or all of it (`VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0`)."""
    return wire_uint64(digest) if int_hashes else digest


def _untagged(extra: tuple[TaggedKey, ...] | None) -> tuple[ExtraKey, ...] | None:
    """The keys of one block as events show them (`to_event_extra_keys`)."""
    return None if extra is None else tuple(_untagged_key(key) for key in extra)


def _untagged_key(key: TaggedKey) -> ExtraKey:
    if key[0] == "mm":
        assert len(key) == 3
        assert isinstance(key[2], int)
        return (key[1], key[2])
    return key[1]
