"""vLLM block hashes: the chained hash an engine gives each full block of a prompt.

Mirrors vllm/utils/hashing.py and vllm/v1/core/kv_cache_utils.py (0.32.0): a block's hash is the digest of the
serialised tuple (parent digest, token ids, extra keys or None); the first block's parent is NONE_HASH, the digest of a
seed text.
"""

from __future__ import annotations

import hashlib
import pickle
from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import cbor2
import xxhash

from index import native
from index.event import EngineHash, ExtraKey
from index.prompt import MultimodalItem
from index.request_key import items_by_block

ALGORITHMS: Final = ("sha256", "sha256_cbor", "xxhash", "xxhash_cbor")
"""The values of vLLM's `--prefix-caching-hash-algo`."""

DEFAULT_SEED: Final = "vllm-none-hash"
"""The seed text of sha256 and sha256_cbor when PYTHONHASHSEED is not set (`DEFAULT_NONE_HASH_SEED`)."""

TaggedKey = tuple[str, str, str] | tuple[str, str, int] | tuple[str, str] | tuple[str, bytes]
"""One extra key as hashed: ("lora", name, path), ("mm", identifier, offset), ("cache_salt", salt) or
("prompt_embeds", digest). An offset counts from the block's start, negative when the item began earlier."""

BlockExtra = tuple[TaggedKey | ExtraKey, ...] | None
"""All extra keys of one block, None when it has none. Releases before the tags hashed the untagged keys of events."""


class HashIdentity(NamedTuple):
    """What decides NONE_HASH: the algorithm and the text of PYTHONHASHSEED, None when that is not set.

    The seed is text ("042" is not "42"; "random" and "" are constants too). Without a seed the xxhash algorithms draw a
    random one in every process: such an engine has no identity that could be named.
    """

    algorithm: str
    seed: str | None


@lru_cache(maxsize=256)
def none_hash(identity: HashIdentity) -> bytes:
    """The parent digest of every first block (`init_none_hash`). ValueError for xxhash without a seed."""
    if identity.seed is None and identity.algorithm.startswith("xxhash"):
        raise ValueError(f"{identity.algorithm} without PYTHONHASHSEED is random in every process")
    return _digest(identity.algorithm, DEFAULT_SEED if identity.seed is None else identity.seed)


def block_hash(algorithm: str, parent: bytes, tokens: Sequence[int], extra: BlockExtra) -> bytes:
    """The full digest of one block: 32 bytes for sha256*, 16 for xxhash*. `parent` is a full digest too."""
    if extra is None and native.CORE.module is not None and (packed := _packed(tokens)) is not None:
        digest: bytes | None = native.CORE.module.block_digest(algorithm, parent, packed)
        if digest is not None:
            return digest
    keys: object = extra
    if extra and not algorithm.endswith("_cbor"):
        keys = tuple(_as_received(key) for key in extra)
    return _digest(algorithm, (parent, tuple(tokens), keys))


def chain(
    identity: HashIdentity, tokens: Sequence[int], block_size: int, extras: Sequence[BlockExtra] | None = None
) -> list[bytes]:
    """The digests of a prompt's full blocks, first to last; a rest shorter than `block_size` has none."""
    count = len(tokens) // block_size
    if not extras and (packed := _packed(tokens)) is not None:
        return run_digests(identity.algorithm, none_hash(identity), packed, block_size)
    digests: list[bytes] = []
    parent = none_hash(identity)
    for number in range(count):
        block = tokens[number * block_size : (number + 1) * block_size]
        parent = block_hash(identity.algorithm, parent, block, extras[number] if extras else None)
        digests.append(parent)
    return digests


def run_digests(algorithm: str, parent: bytes, tokens: bytes, block_size: int) -> list[bytes]:
    """The digests of whole blocks without extra keys below `parent`, a full digest. `tokens`: little-endian u32."""
    if native.CORE.module is not None:
        joined: bytes | None = native.CORE.module.block_digests(algorithm, parent, tokens, block_size)
        if joined is not None:
            size = digest_size(algorithm)
            return [joined[at : at + size] for at in range(0, len(joined), size)]
    digests: list[bytes] = []
    ids = array("I", tokens)
    for number in range(len(ids) // block_size):
        parent = block_hash(algorithm, parent, ids[number * block_size : (number + 1) * block_size], None)
        digests.append(parent)
    return digests


def digest_size(algorithm: str) -> int:
    """Bytes of a full digest."""
    return 16 if algorithm.startswith("xxhash") else 32


def tag_extra_keys(
    untagged: tuple[ExtraKey, ...] | None, lora_name: str | None, lora_path: str | None
) -> tuple[TaggedKey, ...] | None:
    """The extra keys as hashed, from those an event shows for one block (the inverse of `to_event_extra_keys`).

    A text in first place that equals `lora_name` is the adapter, any other text the cache salt. Without `untagged` a
    LoRA block has its adapter alone. ValueError when the adapter's path is needed and not known or not encodable.
    """
    rest = untagged or ()
    tagged: list[TaggedKey] = []
    if lora_name is not None and (not rest or rest[0] == lora_name):
        if lora_path is None:
            raise ValueError("the path of the LoRA adapter is not known")
        lora_path.encode()  # a lone surrogate (from JSON) is a UnicodeEncodeError here, which is a ValueError
        tagged.append(("lora", lora_name, lora_path))
        rest = rest[1:]
    tagged.extend(_tag(key) for key in rest)
    return tuple(tagged) or None


def extra_keys_of(
    length: int,
    block_size: int,
    *,
    lora: tuple[str, str] | None = None,
    cache_salt: str | None = None,
    mm_items: Sequence[MultimodalItem] = (),
    embeds: Sequence[bytes] | None = None,
) -> list[tuple[TaggedKey, ...] | None]:
    """The extra keys of each full block of a prompt of `length` tokens (`generate_block_hash_extra_keys`).

    `lora` is (name, path); `mm_items` are sorted by offset and do not overlap; `embeds` are the digests of the blocks'
    prompt embeddings. The order within a block is the engine's: adapter, items, salt, embeddings.
    """
    adapter: list[TaggedKey] = [("lora", *lora)] if lora else []
    extras: list[tuple[TaggedKey, ...] | None] = []
    items = items_by_block(mm_items, length, block_size)
    for number in range(length // block_size):
        keys = [*adapter, *(("mm", *item) for item in items.get(number, ()))]
        if number == 0 and cache_salt:
            keys.append(("cache_salt", cache_salt))
        if embeds is not None:
            keys.append(("prompt_embeds", embeds[number]))
        extras.append(tuple(keys) or None)
    return extras


def wire_uint64(digest: bytes) -> int:
    """The number by which events name a block: the last 8 digest bytes, big-endian, unsigned."""
    return int.from_bytes(digest[-8:], "big")


def wire_matches(digest: bytes, wire: EngineHash) -> bool:
    """Whether an event's hash names this block: a whole digest, or 64 bits (negative in older releases)."""
    if isinstance(wire, bytes):
        return digest == wire
    return wire_uint64(digest) == wire & 0xFFFF_FFFF_FFFF_FFFF


def _packed(tokens: Sequence[int]) -> bytes | None:
    """The ids as the native core takes them; None when one of them has no 32 bits."""
    try:
        return array("I", tokens).tobytes()
    except OverflowError:
        return None


def _digest(algorithm: str, value: object) -> bytes:
    serialise, digest = _FUNCTIONS[algorithm]
    return digest(serialise(value))


def _as_pickle(value: object) -> bytes:
    return pickle.dumps(value, protocol=5)


def _as_cbor(value: object) -> bytes:
    return cbor2.dumps(value, canonical=True)


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


_FUNCTIONS: Final[dict[str, tuple[Callable[[object], bytes], Callable[[bytes], bytes]]]] = {
    "sha256": (_as_pickle, _sha256),
    "sha256_cbor": (_as_cbor, _sha256),
    "xxhash": (_as_pickle, xxhash.xxh3_128_digest),
    "xxhash_cbor": (_as_cbor, xxhash.xxh3_128_digest),
}

_TAGS: Final = {tag: tag for tag in ("lora", "mm", "cache_salt", "prompt_embeds")}


def _as_received(key: TaggedKey | ExtraKey) -> object:
    """The key with the object identities it has in an engine, on which its pickle depends.

    Pickle writes an object it has met before as a reference. In the engine every value comes out of a message of its
    own, so equal texts are different objects, while the tags are literals in the code, one object each. (Texts of one
    character are one object everywhere in CPython.)
    """
    if not isinstance(key, tuple):
        return _copy(key)
    if len(key) == 2 and isinstance(key[1], int):
        return (_copy(key[0]), key[1])
    return (_TAGS[key[0]], *(_copy(value) for value in key[1:]))


def _copy(value: str | bytes | int) -> str | bytes | int:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass").decode("utf-8", "surrogatepass")
    return bytes(bytearray(value)) if isinstance(value, bytes) else value


def _tag(key: ExtraKey) -> TaggedKey:
    if isinstance(key, str):
        return ("cache_salt", key)
    if isinstance(key, bytes):
        return ("prompt_embeds", key)
    return ("mm", *key)
