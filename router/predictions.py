"""Guesses: which worker will soon hold a prefix because a request with it was just sent there."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice, pairwise
from typing import TYPE_CHECKING, NamedTuple

from xxhash import xxh3_64_intdigest

from index.native import CORE
from index.worker import Worker

if TYPE_CHECKING:
    from types import ModuleType

    from index import _core

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

    def longest(self, tokens: bytes, namespace: str, now: float) -> dict[Worker, int]:
        """The same by worker, each with the length of its longest prefix in tokens."""
        longest: dict[Worker, int] = {}
        for guess in self.holders(tokens, namespace, now):
            for worker in guess.workers:
                longest.setdefault(worker, guess.tokens)
        return longest

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
        key, size = xxh3_64_intdigest(_area(namespace)), len(tokens)
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


class NativePredictions:
    """As `Predictions`, in the native core (index/core/guesses.h); workers go by number there."""

    def __init__(self, module: ModuleType, ttl_s: float, limit: int, boundaries: int) -> None:
        self._ttl_s = ttl_s
        self._core: _core.Guesses = module.Guesses(list(islice(_boundary_ends(), boundaries)), limit)
        self._numbers: dict[Worker, int] = {}
        self._workers: dict[int, Worker] = {}
        self._unused: list[int] = []

    def __len__(self) -> int:
        return len(self._core)

    def holders(self, tokens: bytes, namespace: str, now: float) -> list[Guess]:
        """The workers guessed to hold the prompt's prefixes, the longest prefix first."""
        found = self._core.holders(tokens, _area(namespace), now)
        return [Guess(length, [self._workers[number] for number in numbers]) for length, numbers in found]

    def longest(self, tokens: bytes, namespace: str, now: float) -> dict[Worker, int]:
        """The same by worker, each with the length of its longest prefix in tokens."""
        found = self._core.longest(tokens, _area(namespace), now)
        return {self._workers[number]: length for number, length in found}

    def remember(self, tokens: bytes, namespace: str, worker: Worker, now: float) -> None:
        """A request with this prompt was sent to `worker` now."""
        if self._ttl_s <= 0:
            return
        number = self._numbers.get(worker)
        if number is None:
            number = self._named(worker)
        self._core.remember(tokens, _area(namespace), number, now + self._ttl_s, now)

    def forget(self, worker: Worker) -> None:
        """Drop all guesses about this worker."""
        number = self._numbers.pop(worker, None)
        if number is not None:
            self._core.forget(number)
            del self._workers[number]
            self._unused.append(number)

    def _named(self, worker: Worker) -> int:
        number = self._unused.pop() if self._unused else len(self._numbers)
        self._numbers[worker], self._workers[number] = number, worker
        return number


def new_predictions(
    ttl_s: float, limit: int, boundaries: int, module: ModuleType | None = CORE.module
) -> Predictions | NativePredictions:
    """No guesses yet, in the core that serves unless another is given."""
    if module is None:
        return Predictions(ttl_s, limit, boundaries)
    return NativePredictions(module, ttl_s, limit, boundaries)


def _area(namespace: str) -> bytes:
    return namespace.encode("utf-8", "surrogatepass")


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
