"""First blocks of prompts as engines of any hash identity announce them, and settings that ask for one."""

from __future__ import annotations

import struct
from typing import Any, Literal

from engine.hash_policy import HashPolicy
from engine.identity import HashReport
from index.block_hash import BlockExtra, HashIdentity, block_hash, chain, wire_uint64
from index.event import BlockStored, EngineHash


def settings_of(identity: HashIdentity, policy: Literal["enforce", "translate"] = "enforce") -> HashPolicy:
    return HashPolicy(identity.algorithm, "none" if identity.seed is None else identity.seed, policy)


def stored(
    hashes: list[EngineHash], tokens: list[int], block_size: int, extras: list[Any] | None = None, **fields: Any
) -> BlockStored:
    return BlockStored(
        block_hashes=hashes,
        parent=fields.pop("parent", None),
        tokens=struct.pack(f"<{len(tokens)}I", *tokens),
        block_size=block_size,
        extra_keys=extras,
        **fields,
    )


def root_by(
    identity: HashIdentity, hashed: BlockExtra = None, shown: Any = None, block_size: int = 4, **fields: Any
) -> BlockStored:
    """A first block of an engine with this identity: extra keys as hashed and as shown in the event."""
    tokens = list(range(100, 100 + block_size))
    [digest] = chain(identity, tokens, block_size, [hashed])
    return stored([wire_uint64(digest)], tokens, block_size, [shown], **fields)


def root_of_unknown_seed(algorithm: str = "xxhash", whole: bool = False, **fields: Any) -> BlockStored:
    digest = block_hash(algorithm, b"\x01" * 16, [100, 101, 102, 103], None)
    return stored([digest if whole else wire_uint64(digest)], [100, 101, 102, 103], 4, **fields)


def advice_of(report: HashReport | None) -> str:
    assert report is not None
    assert report.advice is not None
    return report.advice
