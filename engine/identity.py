"""The NONE_HASH identity of vLLM engines: whether a root block was hashed as the fleet hashes, and what to change.

No engine tells its seed or NONE_HASH. But the hash of a prompt's first block follows from its tokens, its extra keys,
the algorithm and the seed (index/block_hash.py), so a first block that can be re-derived proves both.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Final, Literal, NamedTuple

from engine.hash_advice import contradiction_advice, mismatch_advice
from engine.hash_policy import HashPolicy, nameable
from index.block_hash import (
    ALGORITHMS,
    BlockExtra,
    HashIdentity,
    block_hash,
    none_hash,
    tag_extra_keys,
    wire_matches,
)
from index.event import BlockStored, EngineHash
from index.worker import Medium

KNOWN_SEEDS: Final = (None, "0", "42", "random", "")
"""The seeds that are tried when none is given; None is the engine's default text."""

COARSEST_BLOCK: Final = 4096
MOST_UNITS: Final = 128
"""Blocks that are longer, or hold more hash units, are not searched for a finer unit (it would take too long)."""


class HashReport(NamedTuple):
    """What is known of one worker's hashes. `advice` says in words what to change; None when nothing is wrong.

    `identity` is the one found, None when it could not be told; `expected` is the model's, None while not known.
    "none" is for engines without a seed (SGLang), "unverified" for a worker that has shown no usable root block yet;
    `judge` returns neither.
    """

    status: Literal["verified", "unverified", "mismatch", "none"]
    identity: HashIdentity | None = None
    expected: HashIdentity | None = None
    advice: str | None = None


class ModelIdentity:
    """The identity that all vLLM engines of one model must share.

    `expected` is set by the settings when they name both parts, else by the first root block that can be re-derived
    within them with a known seed. `own_seed` is the PYTHONHASHSEED of this process, one more seed worth trying.
    ValueError for settings that no engine can meet: an unknown algorithm, or xxhash with seed "none".
    """

    def __init__(self, settings: HashPolicy, own_seed: str | None) -> None:
        self._settings = settings
        seeds = dict.fromkeys((*KNOWN_SEEDS, own_seed, *settings.seeds))
        self._candidates = [HashIdentity(*pair) for pair in product(ALGORITHMS, seeds) if nameable(*pair)]
        self._units: dict[int, int] = {}
        self.expected = settings.stated()

    def accept(self, identity: HashIdentity) -> bool:
        """Whether an identity proven before is the expected one; it becomes that if none is and settings allow."""
        if self.expected is None and self._settings.admits(identity):
            self.expected = identity
        return self.expected == identity

    def judge(self, event: BlockStored, lora_paths: Mapping[str, str], told: str | None = None) -> HashReport | None:
        """What a store event says about its engine; None when it says nothing.

        It says nothing unless it begins a prompt and its hashes pair with its tokens, nor when it may have failed for a
        reason other than the identity: an adapter whose path is unknown or has changed, prompt embeddings, a tier
        below the GPU (connectors may hash in their own way). Extra keys that an old release does not send count as
        none, and images in a block of several hash units as far as they are seen: one verified block of a process
        outweighs any mismatch. `told` is the algorithm that the engine's metrics name: only the advice goes by it.

        One hash is computed when the block verifies. A mismatch tries every candidate with every hash unit: 2 to 10 ms
        for blocks of 16 to 128, up to 50 ms for the largest; do not ask for every block of such an engine.
        """
        root = _root(event, lora_paths)
        if root is None:
            return None
        if self.expected is not None and self._derives(root, self.expected):
            return HashReport("verified", self.expected, self.expected)
        found = self._find(root)
        if found is not None and self.expected is None and self._settings.admits(found):
            self.expected = found
            return HashReport("verified", found, found)
        if found is None and not self._conclusive(root):
            return None
        advice = mismatch_advice(root.wire, told, found, self.expected, self._settings)
        return HashReport("mismatch", found, self.expected, advice)

    def contradicted(self, identity: HashIdentity) -> HashReport:
        """The report on an engine that hashes by `identity` and has announced a block with another hash."""
        return HashReport("mismatch", identity, self.expected, contradiction_advice(identity))

    def _find(self, root: _Root) -> HashIdentity | None:
        thorough = not root.doubtful
        found = next((identity for identity in self._candidates if self._derives(root, identity, thorough)), None)
        if found is not None:  # the next root of the same engine is quick
            self._candidates.remove(found)
            self._candidates.insert(0, found)
        return found

    def _derives(self, root: _Root, identity: HashIdentity, thorough: bool = True) -> bool:
        """Tries the hash unit that blocks of this size had before; the others too when `thorough`."""
        size = len(root.tokens)
        usual = self._units.get(size, size)
        for unit in _units(size, usual) if thorough else (usual,):
            if any(wire_matches(_digest_at_end(root, identity, unit, form), root.wire) for form in root.forms):
                self._units[size] = unit
                return True
        return False

    def _conclusive(self, root: _Root) -> bool:
        """Whether a failure can only be the identity's. In a block of several hash units an item's end is not known."""
        size = len(root.tokens)
        return not root.doubtful and not (root.has_items and self._units.get(size, size) < size)


class _Root(NamedTuple):
    """The first block of a prompt. `forms` are the extra keys it may have been hashed with, newest release first."""

    wire: EngineHash
    tokens: tuple[int, ...]
    forms: tuple[BlockExtra, ...]
    has_lora: bool
    has_items: bool
    doubtful: bool


def _root(event: BlockStored, lora_paths: Mapping[str, str]) -> _Root | None:
    size = event.block_size
    if event.parent is not None or event.bigrams or not event.block_hashes or size <= 0:
        return None
    if len(event.block_hashes) * size * 4 != len(event.tokens):
        return None
    keys = event.extra_keys[0] if event.extra_keys else None
    name = event.lora_name
    return _Root(
        wire=event.block_hashes[0],
        tokens=struct.unpack_from(f"<{size}I", event.tokens),
        forms=_forms(event, lora_paths),
        has_lora=name is not None,
        has_items=any(isinstance(key, tuple) for key in keys or ()),
        doubtful=name is not None or event.medium != Medium.GPU or any(isinstance(key, bytes) for key in keys or ()),
    )


def _forms(event: BlockStored, lora_paths: Mapping[str, str]) -> tuple[BlockExtra, ...]:
    """Tagged as of 0.32, and untagged as before, when an adapter was hashed by its name alone."""
    name = event.lora_name
    untagged = event.extra_keys[0] if event.extra_keys else None
    plain = untagged or ((name,) if name is not None else None)
    try:
        tagged = tag_extra_keys(untagged, name, None if name is None else lora_paths.get(name))
    except ValueError:
        return (plain,)
    return (tagged,) if plain is None else (tagged, plain)


def _units(size: int, usual: int) -> Iterator[int]:
    """The usual unit, then the block size and its divisors: hybrid models hash finer than a coarse group's blocks."""
    yield usual
    most = min(size, MOST_UNITS) if size <= COARSEST_BLOCK else 1
    yield from (size // count for count in range(1, most + 1) if size % count == 0 and size // count != usual)


def _digest_at_end(root: _Root, identity: HashIdentity, unit: int, extra: BlockExtra) -> bytes:
    """The hash at the block's end, chained in steps of `unit`: a salt is in the first step, an adapter in all."""
    digest = none_hash(identity)
    for start in range(0, len(root.tokens), unit):
        digest = block_hash(identity.algorithm, digest, root.tokens[start : start + unit], extra)
        if start == 0 and extra is not None:
            extra = extra[:1] if root.has_lora else None
    return digest
