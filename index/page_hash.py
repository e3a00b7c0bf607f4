"""SGLang page hashes: the chained hash of each page of a prompt, and the forms in which events name it.

Mirrors sglang/srt/mem_cache/utils.py and sglang/srt/disaggregation/kv_events.py (0.5.22). There is no seed, model or
adapter in the chain: equal tokens, page size and cache salt give equal hashes on every engine.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from uuid import NAMESPACE_URL, uuid5


def page_hashes(
    tokens: bytes, page_bytes: int, cache_salt: str | None = None, *, parent: bytes | None = None
) -> list[bytes]:
    """The 32-byte digests of the whole pages, first to last; the rest has none.

    `tokens` are u32 little-endian, for EAGLE 8 bytes a unit (both halves of each pair); `page_bytes` is the page size
    in the same bytes. An empty salt is none. `parent`, the digest of the page before them, continues its chain.
    """
    if parent is None:
        parent = hashlib.sha256(b"sglang-cache-salt-v1\0" + cache_salt.encode()).digest() if cache_salt else b""
    digests: list[bytes] = []
    for start in range(0, len(tokens) - page_bytes + 1, page_bytes):
        parent = hashlib.sha256(parent + tokens[start : start + page_bytes]).digest()
        digests.append(parent)
    return digests


def wire_int64(digest: bytes) -> int:
    """The number by which events name a page: the first 8 digest bytes, big-endian, signed."""
    return int.from_bytes(digest[:8], "big", signed=True)


def namespaced(wire: int, extra_key: str | None, cache_salt: str | None) -> int:
    """The wire hash under `"format": "dynamo"`, which tells namespaces apart; unchanged in the unnamed one.

    `extra_key` is the engine's: the request's followed by the adapter's `lora_id`. Empty texts are none.
    """
    if not extra_key and not cache_salt:
        return wire
    seed = _namespace_seed(extra_key or None, cache_salt or None)
    return wire_int64(hashlib.sha256(seed + wire.to_bytes(8, "big", signed=True)).digest())


def lora_id(name: str, path: str) -> str:
    """The id of an adapter given with `--lora-paths` (`LoRARef.deterministic_id`), 32 hex characters.

    An adapter loaded through the API has a random id instead, which nothing outside the engine can derive.
    """
    return uuid5(NAMESPACE_URL, f"{name}\0{path}").hex


@lru_cache(maxsize=1024)
def _namespace_seed(extra_key: str | None, cache_salt: str | None) -> bytes:
    digest = hashlib.sha256(b"sglang-kv-event-namespace-v1")
    for part in (extra_key, cache_salt):
        if part is None:
            digest.update(b"\x00")
        else:
            encoded = part.encode()
            digest.update(b"\x01" + len(encoded).to_bytes(8, "little") + encoded)
    return digest.digest()
