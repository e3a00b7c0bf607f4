"""Guesses: which worker will soon hold a prefix because a request with it was just sent there."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice, pairwise
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from index.worker import Worker

_STEPS = ((16, 256), (64, 1024))
_LAST_STEP = 256


class Guess(NamedTuple):
    """The first `tokens` of a prompt will probably soon be held by these workers."""

    tokens: int
    workers: list[Worker]


class Predictions:
    """Prefix -> workers it was sent to, by chained XXH3-64 keys at fixed prefix lengths.

    A guess lives `ttl_s` from the first request and following it does not prolong it, so one that no event confirms
    ends. At most `limit` guesses, and `boundaries` prefix lengths per prompt: work and memory are bounded.
    """

    def __init__(self, ttl_s: float, limit: int, boundaries: int) -> None:
        self._ttl_s = ttl_s
        self._limit = limit
        ends = [0, *islice(_boundary_ends(), boundaries)]
        self._spans = tuple((start * 4, end * 4) for start, end in pairwise(ends))
        self._workers: dict[int, dict[Worker, float]] = {}
        self._order: deque[tuple[float, int, Worker]] = deque()

    def __len__(self) -> int:
        return len(self._order)

    def holders(self, tokens: bytes, namespace: str, now: float) -> list[Guess]:
        """The workers guessed to hold the prompt's prefixes, the longest prefix first."""
        self._drop_old(now)
        if not self._workers:
            return []
        keys = zip(self._spans, self._keys(tokens, namespace), strict=False)
        found = [Guess(end // 4, list(self._workers[key])) for (_, end), key in keys if key in self._workers]
        return found[::-1]

    def remember(self, tokens: bytes, namespace: str, worker: Worker, now: float) -> None:
        """A request with this prompt was sent to `worker` now."""
        if self._ttl_s <= 0:
            return
        expires = now + self._ttl_s
        guesses, order = self._workers, self._order
        for key in self._keys(tokens, namespace):
            workers = guesses.get(key)
            if workers is None:
                workers = guesses[key] = {}
            if worker not in workers:
                workers[worker] = expires
                order.append((expires, key, worker))
        self._drop_old(now)

    def forget(self, worker: Worker) -> None:
        """Drop all guesses about this worker."""
        kept = [guess for guess in self._order if guess[2] != worker]
        for _, key, holder in self._order:
            if holder == worker:
                self._drop(key, worker)
        self._order = deque(kept)

    def _keys(self, tokens: bytes, namespace: str) -> list[int]:
        key, size = xxh3_64_intdigest(namespace.encode("utf-8", "surrogatepass")), len(tokens)
        keys: list[int] = []
        for start, end in self._spans:
            if end > size:
                break
            key = xxh3_64_intdigest(tokens[start:end], seed=key)
            keys.append(key)
        return keys

    def _drop_old(self, now: float) -> None:
        while self._order and (self._order[0][0] <= now or len(self._order) > self._limit):
            _, key, worker = self._order.popleft()
            self._drop(key, worker)

    def _drop(self, key: int, worker: Worker) -> None:
        workers = self._workers[key]
        del workers[worker]
        if not workers:
            del self._workers[key]


def _boundary_ends() -> Iterator[int]:
    """16, 32 .. 256, 320, 384 .. 1024, 1280, 1536 .. tokens: fine where prompts part, coarse where they are long."""
    end = 0
    for step, until in _STEPS:
        while end < until:
            end += step
            yield end
    while True:
        end += _LAST_STEP
        yield end
