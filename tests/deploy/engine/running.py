"""Requests as a scheduler runs them on a cache: chunked prefill, decode steps, finish."""

from __future__ import annotations

from deploy.engine.cache import PLAIN, KVCache, KVSequence, Namespace


class FullCacheError(Exception):
    """The cache had no room for the request."""


def begin(cache: KVCache, prompt: list[int], namespace: Namespace = PLAIN, *, limit: int | None = None) -> KVSequence:
    """The first chunk of a request, computed."""
    sequence = cache.start(prompt, namespace, limit=limit)
    if sequence is None:
        raise FullCacheError
    cache.computed(sequence)
    return sequence


def prefill(cache: KVCache, prompt: list[int], namespace: Namespace = PLAIN, *, limit: int | None = None) -> KVSequence:
    """A request whose prompt is computed, in chunks of `limit`."""
    sequence = begin(cache, prompt, namespace, limit=limit)
    while sequence.computed_tokens < len(sequence.tokens):
        rest = len(sequence.tokens) - sequence.computed_tokens
        extend(cache, sequence, rest if limit is None else min(rest, limit))
    return sequence


def extend(cache: KVCache, sequence: KVSequence, count: int = 1) -> None:
    """The next `count` tokens, computed."""
    if not cache.extend(sequence, count):
        raise FullCacheError
    cache.computed(sequence)


def decode(cache: KVCache, sequence: KVSequence, outputs: list[int]) -> None:
    """Append tokens as sampled: each but the first of a request costs a forward pass of the one before."""
    for token in outputs:
        if sequence.computed_tokens < len(sequence.tokens):
            extend(cache, sequence)
        sequence.tokens.append(token)


def run(
    cache: KVCache,
    prompt: list[int],
    outputs: list[int],
    namespace: Namespace = PLAIN,
    *,
    limit: int | None = None,
) -> KVSequence:
    """A whole request."""
    sequence = prefill(cache, prompt, namespace, limit=limit)
    decode(cache, sequence, outputs)
    cache.finish(sequence)
    return sequence
