"""What a scheduler asks of a KV cache: the one interface of the block pool (vLLM) and of the radix cache (SGLang).

A request's life: `start` finds the cached prefix and takes slots for the first chunk; after the step's forward pass
`computed`; then `extend` and `computed` again for each further chunk, and, after the scheduler appended a sampled token
to `tokens`, for each decode step; at last `finish`. Slots are numbers below `slots_total`; a token's KV lies at its
slot in whatever tensors the model has. Everything is synchronous and deterministic.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from index.event import KVEvent
from index.prompt import MultimodalItem


class Namespace(NamedTuple):
    """What keeps equal tokens apart. vLLM knows `lora` (name, path), `cache_salt` and `mm_items`; SGLang `extra_key`
    (with the adapter's id already in it) and `cache_salt`."""

    cache_salt: str | None = None
    extra_key: str | None = None
    lora: tuple[str, str] | None = None
    mm_items: tuple[MultimodalItem, ...] = ()


PLAIN = Namespace()


@dataclass(eq=False)
class KVSequence:
    """One running request's hold on the cache.

    `slots[i]` is where the KV of token `i` lies or will lie. The scheduler appends sampled tokens to `tokens` and reads
    the rest. `slots` can change under `computed` and `extend` (the radix cache replaces a duplicate by the tree's copy,
    with equal KV), so read it in each step.
    """

    tokens: list[int]
    prompt_length: int
    namespace: Namespace = PLAIN
    cached_tokens: int = 0
    computed_tokens: int = 0
    slots: list[int] = field(default_factory=list)

    @property
    def pending(self) -> range:
        """The positions whose slots are allocated and whose KV the next forward pass computes."""
        return range(self.computed_tokens, min(len(self.slots), len(self.tokens)))


class CacheStats(NamedTuple):
    """Slots, in tokens: `used` by running sequences, `evictable` cached and held by none, `free` the rest.

    `evicted` counts the cached tokens lost to reuse since the start.
    """

    total: int
    used: int
    evictable: int
    free: int
    evicted: int


class KVCache(Protocol):
    """A KV cache with prefix reuse."""

    @property
    def slots_total(self) -> int:
        """All slots are below this number (rows to give each layer's tensors)."""

    def peek(self, tokens: list[int], namespace: Namespace = PLAIN) -> int:
        """The tokens a request with this prompt would reuse now. Changes nothing, not even recency."""

    def start(
        self,
        tokens: list[int],
        namespace: Namespace = PLAIN,
        *,
        limit: int | None = None,
        reuse: bool = True,
        prompt_length: int | None = None,
    ) -> KVSequence | None:
        """Hold the prompt's cached prefix and allocate slots for the next tokens, at most `limit` (None: the rest).

        At least one token is always left to compute. None when the slots do not suffice; then nothing has changed but
        recency. `reuse` False skips the lookup (vLLM: prompt logprobs). `prompt_length` tells how many of `tokens` are
        the prompt when a preempted request starts again with some output (None: all).
        """

    def extend(self, sequence: KVSequence, count: int) -> bool:
        """Allocate slots for the `count` tokens after the computed ones. False, with none allocated, when full.

        Everything allocated before must be computed.
        """

    def checkpoint(self, sequence: KVSequence) -> None:
        """The next step is planned, and from now on all that is computed can be found, also what a cache with `overlap`
        has left out so far. Between the chunks of a prefill `extend` does it by itself."""

    def computed(self, sequence: KVSequence) -> None:
        """The forward pass has written the KV of all `pending` positions."""

    def finish(self, sequence: KVSequence, *, keep: bool = True) -> None:
        """Let go of the sequence; it is not used again. `keep` False (abort, preemption) adds nothing to the cache,
        but what earlier chunks added stays."""

    def take_events(self) -> list[KVEvent]:
        """The KV events since the last call, in order: one batch of the stream; empty means there is none to send."""

    def clear(self) -> bool:
        """Forget everything. False, with nothing changed, while a sequence is running."""

    def stats(self) -> CacheStats:
        """What the slots hold now."""
