"""A request's own engine hashes, for lookups that request keys cannot follow.

vLLM announces partial entries (blocks hashed finer than they are stored) with a parent that was perhaps never announced
and without the tokens before them: only the engine's own chain, re-derived with its verified algorithm and seed, finds
them. Used for hybrid models with mixed block sizes or partial entries, and for models without full attention, whose
events leave out hashes that no other group's events name; everything else goes by request keys. Without a verified
identity, or for an adapter whose path is not known, such lookups fall back to keys and fall short, never over.
"""

from __future__ import annotations

from array import array

from index.block_hash import HashIdentity, TaggedKey, block_hash, none_hash, wire_uint64
from index.block_worker import BlockWorker
from index.group_rules import Held
from index.holders import Holders
from index.prompt import Prompt
from index.request_key import items_by_block


class EngineChain:
    """The engine's block hashes of one prompt at a hash unit (tokens), computed no further than asked."""

    def __init__(self, prompt: Prompt, identity: HashIdentity, unit: int, lora_path: str) -> None:
        self._prompt = prompt
        self._tokens = array("I", prompt.tokens)
        self._identity = identity
        self._lora_path = lora_path
        self._items = items_by_block(prompt.mm_items, prompt.length, unit)
        self._digests: list[bytes] = []
        self.unit = unit

    def digest(self, end: int) -> bytes | None:
        """The hash of the prefix of `end` tokens; None off the unit's boundaries or beyond the prompt."""
        index = end // self.unit - 1
        if end % self.unit or end > len(self._tokens) or index < 0:
            return None
        while len(self._digests) <= index:
            self._append()
        return self._digests[index]

    def holds(self, holders: Holders, worker: BlockWorker) -> Held:
        """Whether a worker holds, in a group, the block that ends at a position, in any tier."""

        def held(group: int, end: int) -> bool:
            digest = self.digest(end)
            if digest is None:
                return False
            return any(holders.holds_hash(worker, group, name) for name in (wire_uint64(digest), digest))

        return held

    def _append(self) -> None:
        start = len(self._digests) * self.unit
        parent = self._digests[-1] if self._digests else none_hash(self._identity)
        tokens = self._tokens[start : start + self.unit].tolist()
        self._digests.append(block_hash(self._identity.algorithm, parent, tokens, self._extras(start)))

    def _extras(self, start: int) -> tuple[TaggedKey, ...] | None:
        """vLLM `generate_block_hash_extra_keys`: LoRA, multimodal items, the salt in the first block."""
        extras: list[TaggedKey] = []
        if self._prompt.lora is not None:
            extras.append(("lora", self._prompt.lora.partition("\0")[0], self._lora_path))
        extras.extend(("mm", *item) for item in self._items.get(start // self.unit, ()))
        if start == 0 and self._prompt.cache_salt is not None:
            extras.append(("cache_salt", self._prompt.cache_salt))
        return tuple(extras) or None
