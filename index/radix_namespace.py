"""Which namespace of the radix tree a root page, or a request, belongs to.

SGLang separates (extra_key, cache_salt), extra_key including the adapter's id. The default event format shows the salt
only; `"format": "dynamo"` shows the rest in the hash and nowhere else (sglang/srt/mem_cache/events.py, 0.5.22). A root
whose hash follows from its tokens, salt and adapter is filed by name. Any other root of a worker that sends SGLang's
hashes is filed by the hash of its first page, which a request that knows its extra_key can compute.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from index.event import BlockStored
from index.page_hash import namespaced, page_hashes, wire_int64
from index.radix_holder import handle_of

MAX_HIDDEN = 8_192  # (adapter, salt, first page) remembered
MAX_ALIKE = 64  # hidden namespaces remembered of each


class NamespaceRequest(NamedTuple):
    """What a request says of its namespace. `lora_ids` are the ids its adapter may have, as far as they are known."""

    lora_name: str | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    lora_ids: Collection[str] = ()


class RadixNamespaces:
    """The namespaces of one pool. It remembers a bounded number of adapters' hidden ones, the oldest are forgotten."""

    def __init__(self, page_bytes: int) -> None:
        self._page_bytes = page_bytes
        self._genuine: set[int] = set()
        self._hidden: dict[tuple[str, str, bytes], dict[str, None]] = {}

    def expect_dynamo(self, slot: int) -> None:
        """Discovery says that this worker sends the dynamo format: a hash not explained is a hidden namespace."""
        self._genuine.add(slot)

    def is_genuine(self, slot: int) -> bool:
        """Whether a hash of this worker that cannot be explained lies in a hidden namespace."""
        return slot in self._genuine

    def forget(self, slot: int) -> None:
        """The worker is gone: what its slot says next is not known to be SGLang's."""
        self._genuine.discard(slot)

    def of_root(self, slot: int, event: BlockStored, lora_ids: Collection[str] = ()) -> str:
        """The namespace of a store without a parent. `lora_ids` are the known ids of the event's adapter.

        Until a worker has sent a hash that could be explained, its hashes may be anything, so they say nothing.
        """
        first = event.tokens[: self._page_bytes]
        salt, lora = event.cache_salt or None, event.lora_name or None
        if len(first) < self._page_bytes or not event.block_hashes:
            return named(salt, lora)
        wire, plain = handle_of(event.block_hashes[0]), self._plain(first, salt)
        if wire in {plain, namespaced(plain, None, salt)} or any(
            wire == namespaced(plain, lora_id, salt) for lora_id in lora_ids
        ):
            self._genuine.add(slot)
            return named(salt, lora)
        if slot not in self._genuine:
            return named(salt, lora)
        if lora is not None:
            self._remember((lora, salt or "", first), hidden(wire))
        return hidden(wire)

    def of_request(self, tokens: bytes, request: NamespaceRequest) -> list[str]:
        """Where a prompt, in unit form, may lie; of several the longest match counts.

        With an extra_key only the dynamo format can tell, so only the hidden namespace of that key is answered; the key
        may or may not end with the adapter's id. An adapter whose id is not known (one loaded through the API has a
        random one) lies in any hidden namespace seen with its name, salt and first page.
        """
        first = tokens[: self._page_bytes]
        if len(first) < self._page_bytes:
            return []
        salt, lora, extra = request.cache_salt or None, request.lora_name or None, request.extra_key or None
        plain = self._plain(first, salt)
        if extra is not None:
            keys = [extra.removesuffix(lora_id) + lora_id for lora_id in request.lora_ids] if lora is not None else []
            return [hidden(namespaced(plain, key, salt)) for key in keys or [extra]]
        if lora is None:
            return [named(salt, None)]
        if request.lora_ids:
            keys = [hidden(namespaced(plain, lora_id, salt)) for lora_id in request.lora_ids]
            return [named(salt, lora), *keys]
        return [named(salt, lora), *self._hidden.get((lora, salt or "", first), ())]

    def _plain(self, first: bytes, salt: str | None) -> int:
        return wire_int64(page_hashes(first, self._page_bytes, salt)[0])

    def _remember(self, key: tuple[str, str, bytes], name: str) -> None:
        names = self._hidden.pop(key, {})
        self._hidden[key] = names
        names.pop(name, None)
        names[name] = None
        if len(names) > MAX_ALIKE:
            del names[next(iter(names))]
        if len(self._hidden) > MAX_HIDDEN:
            del self._hidden[next(iter(self._hidden))]


def named(cache_salt: str | None, lora_name: str | None) -> str:
    """The namespace of a salt and an adapter, both told by name."""
    salt = cache_salt or ""
    return f"={len(salt)}:{salt}{lora_name or ''}"


def hidden(wire: int) -> str:
    """The namespace of whoever names its first page so."""
    return f"?{wire}"
