"""Events as engines publish them, with genuine hashes: made from tokens, not recorded."""

from __future__ import annotations

from typing import Any

from index.block_hash import HashIdentity, chain, extra_keys_of, wire_uint64
from index.page_hash import page_hashes, wire_int64
from tests.support.service import u32

DEFAULT = HashIdentity("sha256", None)
"""What a vLLM engine hashes with when nothing is set."""
BLOCK = 16


def vllm_stored(
    tokens: list[int],
    identity: HashIdentity = DEFAULT,
    *,
    block_size: int = BLOCK,
    lora: tuple[str, str] | None = None,
    skip: int = 0,
    medium: str = "GPU",
) -> dict[str, Any]:
    """A prompt's full blocks but the first `skip`, as vLLM announces them. `lora` is (name, path)."""
    extras = extra_keys_of(len(tokens), block_size, lora=lora) if lora else None
    hashes = [wire_uint64(digest) for digest in chain(identity, tokens, block_size, extras)]
    return {
        "type": "BlockStored",
        "block_hashes": hashes[skip:],
        "parent_block_hash": hashes[skip - 1] if skip else None,
        "token_ids": tokens[skip * block_size : len(hashes) * block_size],
        "block_size": block_size,
        "lora_id": None if lora is None else 1,
        "medium": medium,
        "lora_name": None if lora is None else lora[0],
        "extra_keys": [[lora[0]] if lora else None] * len(hashes[skip:]),
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }


def vllm_removed(stored: dict[str, Any]) -> dict[str, Any]:
    """The removal of everything a store announced."""
    return {
        "type": "BlockRemoved",
        "block_hashes": stored["block_hashes"],
        "medium": stored["medium"],
        "group_idx": stored["group_idx"],
    }


def sglang_stored(tokens: list[int], page_size: int = 1) -> dict[str, Any]:
    """A prompt's whole pages as SGLang announces them in its default format."""
    digests = page_hashes(u32(tokens), page_size * 4)
    return {
        "type": "BlockStored",
        "block_hashes": [wire_int64(digest) for digest in digests],
        "parent_block_hash": None,
        "token_ids": tokens[: len(digests) * page_size],
        "block_size": page_size,
        "lora_id": None,
        "medium": "GPU",
    }


CLEARED = {"type": "AllBlocksCleared"}


def prompt(number: int, length: int = 64) -> list[int]:
    """Token ids that share no block with another number's."""
    return [number * 100_000 + position for position in range(length)]
