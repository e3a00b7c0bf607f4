"""A routing request as it was read, and the last ones kept so that equal ones need not be read again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from index.prompt import MultimodalItem

_MAX_KEPT = 256
_MAX_KEPT_BYTES = 4096


class RouteRequest(NamedTuple):
    """What a gateway asks. Exactly one of `tokens`, `prompt` and `messages` is not None.

    `tokens` are little-endian u32 ids, 4 bytes each, at least one. `mm_items` are in order and do not overlap.
    `reads_cache` is False when the engine will compute the whole prompt whatever it holds (prompt log-probabilities).
    """

    model: str
    tokens: bytes | None
    prompt: str | None
    messages: list[dict[str, Any]] | None
    tools: list[dict[str, Any]] | None
    chat_template_kwargs: dict[str, Any] | None
    add_generation_prompt: bool
    lora: str | None
    cache_salt: str | None
    extra_key: str | None
    mm_items: tuple[MultimodalItem, ...]
    candidates: tuple[str, ...] | None
    exclude: tuple[str, ...]
    selector: Mapping[str, str]
    session_id: str | None
    max_tokens: int | None
    priority: int
    dry_run: bool
    explain: bool
    strict: bool
    reads_cache: bool
    lora_path: str | None = None


class KeptRequests:
    """The last requests that were right, without their token ids, by the bytes that say all the rest.

    Most gateways say the same with every prompt. What is different for each user, or long, is not kept.
    """

    def __init__(self) -> None:
        self._kept: dict[bytes, tuple[Any, ...]] = {}

    def request(self, said: bytes, tokens: bytes) -> RouteRequest | None:
        """The request that was kept for these bytes, with these tokens."""
        kept = self._kept.get(said)
        # Naming 22 fields in a call takes twice as long.
        return None if kept is None else tuple.__new__(RouteRequest, (kept[0], tokens, *kept[2:]))

    def keep(self, said: bytes, request: RouteRequest) -> None:
        """Keep a request for other tokens, if it is one to be kept."""
        if request.mm_items or request.session_id is not None or len(said) > _MAX_KEPT_BYTES:
            return
        if len(self._kept) >= _MAX_KEPT:
            self._kept.clear()
        self._kept[said] = request._replace(tokens=None)
