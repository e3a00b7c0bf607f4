"""Continuous batching: which requests compute how many tokens in the next step, and what becomes of them.

The rules of a step are a `Planner`: `mixed_steps.plan` (vLLM) or `prefill_first.plan` (SGLang). No I/O, no clock.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from deploy.engine.cache import KVCache, KVSequence
from deploy.engine.request import FinishReason, Output, Request


class Limits(NamedTuple):
    """Bounds of a step: requests that hold KV, and prompt tokens (vLLM: all tokens) computed. `page` is what chunks of
    a prefill are rounded down to."""

    max_running: int
    step_tokens: int
    page: int = 1


class Work(NamedTuple):
    """A request's part in a step: its sequence's `pending` positions. `samples`: a token comes out of it."""

    request: Request
    sequence: KVSequence
    decode: bool
    samples: bool


Planner = Callable[["Scheduler"], list[Work]]


@dataclass
class Counts:
    """Since the start, in tokens where nothing else is said."""

    queried: int = 0
    hit: int = 0
    prompt: int = 0
    generated: int = 0
    preemptions: int = 0
    finished: Counter[FinishReason] = field(default_factory=Counter)


class Scheduler:
    """The requests of one cache. `plan` and `done` alternate; `add` and `abort` may come at any time between."""

    def __init__(self, cache: KVCache, limits: Limits, planner: Planner) -> None:
        self.cache = cache
        self.limits = limits
        self.counts = Counts()
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._planner = planner
        self._aborting: list[Request] = []
        self._in_step = False

    def add(self, request: Request) -> None:
        """Queue a request; it must be able to run alone."""
        self.waiting.append(request)

    def abort(self, request: Request) -> None:
        """End a request; its KV is let go when the step under way is done."""
        if request.finish is None:
            request.finish = "abort"
            self._aborting.append(request)
            if not self._in_step:
                self._drop_aborted()

    def plan(self) -> list[Work]:
        """The next step; empty when there is nothing to do."""
        before = [one.sequence for one in self.running]
        works = self._planner(self)
        held = {one.sequence for one in self.running}
        for sequence in before:
            if sequence is not None and sequence in held:
                self.cache.checkpoint(sequence)
        self._in_step = bool(works)
        return works

    def done(self, works: Sequence[Work], tokens: Sequence[int]) -> list[tuple[Request, Output]]:
        """The step is computed; `tokens` are sampled by the works that sample, in order. What is new for whom."""
        self._in_step = False
        news: list[tuple[Request, Output]] = []
        sampled = iter(tokens)
        for work in works:
            self.cache.computed(work.sequence)
            token = next(sampled) if work.samples else None
            if token is not None and work.request.finish is None:
                news.append((work.request, self._take(work, token)))
        self._drop_aborted()
        return news

    def begin(self, request: Request, sequence: KVSequence) -> Work:
        """For planners: a waiting request has got its sequence and runs."""
        removed = self.waiting.popleft()
        assert removed is request
        request.sequence, request.prefill_end = sequence, len(sequence.tokens)
        self.running.append(request)
        if request.cached_tokens is None:
            request.cached_tokens = sequence.cached_tokens
            self.counts.queried += len(sequence.tokens)
            self.counts.hit += sequence.cached_tokens
            self.counts.prompt += len(request.prompt)
        return self.work(request)

    def work(self, request: Request) -> Work:
        """For planners: what is pending for a running request."""
        sequence = request.sequence
        assert sequence is not None
        decode = sequence.computed_tokens >= request.prefill_end
        return Work(request, sequence, decode, samples=len(sequence.slots) == len(sequence.tokens))

    def preempt(self, request: Request) -> None:
        """For planners: a running request loses its KV and waits again, in front of all others."""
        assert request.sequence is not None
        self.running.remove(request)
        self.cache.finish(request.sequence, keep=False)
        request.sequence = None
        self.waiting.appendleft(request)
        self.counts.preemptions += 1

    def _take(self, work: Work, token: int) -> Output:
        output = work.request.sampled(token)
        work.sequence.tokens.append(token)
        self.counts.generated += 1
        if output.finish is not None:
            self._leave(work.request, keep=True)
        return output

    def _drop_aborted(self) -> None:
        for request in self._aborting:
            if request.sequence is not None:
                self._leave(request, keep=False)
            else:
                self.waiting.remove(request)
                self.counts.finished["abort"] += 1
        self._aborting.clear()

    def _leave(self, request: Request, *, keep: bool) -> None:
        assert request.sequence is not None
        assert request.finish is not None
        self.cache.finish(request.sequence, keep=keep)
        request.sequence = None
        self.running.remove(request)
        self.counts.finished[request.finish] += 1
