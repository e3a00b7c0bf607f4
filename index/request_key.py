"""Request keys: what prompts are matched by. A chain of XXH3-64 over (parent key, namespace, tokens).

A request has tokens, not engine hashes: an adapter's path is not on the wire, the default `sha256` hashes a pickle, and
the wire form is cut to 64 bits. So the same key is computed from an event's tokens and from a request's, and an engine
hash stays an opaque handle (docs/adr/0001). Keys are 8 bytes; the chain starts at the namespace (LoRA name, salt).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xxhash import xxh3_64_digest

from index.event import ExtraKey
from index.prompt import MultimodalItem, Prompt

RequestKey = bytes
KEY_BYTES = 8


def root_key(lora: str | None, cache_salt: str | None) -> RequestKey:
    """The key before a prompt's first block. Two namespaces never share a key."""
    return xxh3_64_digest(_text(lora) + _text(cache_salt))


def extended(parent: RequestKey, extra: Sequence[ExtraKey]) -> RequestKey:
    """The parent key of a block that has extra keys (multimodal items, embedding digests) of its own."""
    return below_joined(parent, joined_extra(extra))


def joined_extra(extra: Sequence[ExtraKey]) -> bytes:
    """The extra keys of a block as the bytes that are hashed; empty for none."""
    return b"".join(_extra(key) for key in extra)


def below_joined(parent: RequestKey, joined: bytes) -> RequestKey:
    """`extended` for keys that are joined already."""
    return xxh3_64_digest(parent + b"\x02" + joined)


def chained_key(root: RequestKey, tokens: bytes, blocks: int, step: int, extras: list[bytes] | None) -> RequestKey:
    """The key of the last of so many blocks below `root`; `step` token bytes make a key, a block may have several."""
    key, stride = root, len(tokens) // blocks
    for number in range(blocks):
        if extras is not None and (extra := extras[number]):
            key = below_joined(key, extra)
        for at in range(number * stride, (number + 1) * stride, step):
            key = xxh3_64_digest(key + tokens[at : at + step])
    return key


def split_keys(keys: bytes) -> list[RequestKey]:
    """Joined request keys, one by one."""
    return [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]


def split_root_extras(extra: Sequence[ExtraKey], lora: str | None) -> tuple[str | None, tuple[ExtraKey, ...]]:
    """The salt of a first block and its remaining keys, from vLLM's untagged form.

    A bare str equal to the event's LoRA name in first place is the adapter; any other bare str is the salt
    (vllm `kv_cache_utils.py:to_event_extra_keys`).
    """
    rest = strip_lora(extra, lora)
    salts = [key for key in rest if isinstance(key, str)]
    return (salts[0] if salts else None), tuple(key for key in rest if not isinstance(key, str))


def strip_lora(extra: Sequence[ExtraKey], lora: str | None) -> tuple[ExtraKey, ...]:
    """A block's extra keys without the adapter name, which the namespace already holds."""
    if lora is not None and extra and extra[0] == lora:
        return tuple(extra[1:])
    return tuple(extra)


def prompt_keys(prompt: Prompt, block_size: int) -> Iterator[RequestKey]:
    """The keys of a prompt's whole blocks, in order, computed only as far as they are asked for."""
    tokens, step = prompt.tokens, block_size * 4
    key = root_key(prompt.lora, prompt.cache_salt)
    whole = len(tokens) // step * step
    items = items_by_block(prompt.mm_items, prompt.length, block_size)
    for start in range(0, whole, step):
        if items and (extra := items.get(start // step)):
            key = extended(key, extra)
        key = xxh3_64_digest(key + tokens[start : start + step])
        yield key


def items_by_block(
    mm_items: Sequence[MultimodalItem], length: int, block_size: int
) -> dict[int, tuple[tuple[str, int], ...]]:
    """By number of the block, (identifier, offset from the block's start) of the multimodal items that overlap it.

    In order of their offsets; an offset is negative when the item began earlier. Mirrors vLLM
    `kv_cache_utils.py:_gen_mm_extra_hash_keys`. Blocks without items, and a last block that is not whole, are left out.
    """
    blocks: dict[int, tuple[tuple[str, int], ...]] = {}
    whole = length // block_size * block_size
    for item in sorted(mm_items, key=lambda item: item.offset):
        for start in range(item.offset // block_size * block_size, min(item.offset + item.length, whole), block_size):
            number = start // block_size
            blocks[number] = (*blocks.get(number, ()), (item.identifier, item.offset - start))
    return blocks


def _text(value: str | None) -> bytes:
    if value is None:
        return b"\x00"
    raw = value.encode("utf-8", "surrogatepass")
    return b"\x01" + len(raw).to_bytes(4, "little") + raw


def _extra(key: ExtraKey) -> bytes:
    if isinstance(key, tuple):
        return b"\x03" + _text(key[0]) + key[1].to_bytes(16, "little", signed=True)
    if isinstance(key, bytes):
        return b"\x04" + len(key).to_bytes(4, "little") + key
    return b"\x05" + _text(key)
