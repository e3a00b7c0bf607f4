"""One engine of the simulated fleet: the CPU engine's block pool, vLLM's steps, and time by a cost model.

A step computes at most `step_tokens` of prefills, first come first served, and one token for each decoding request. It
takes `prefill_us` for each token computed and `decode_us` if anything decodes. Simpler than an engine: a request is
admitted when prompt and output fit (no preemption), its output's KV is taken when its prefill ends, and decodes
do not use the step's budget.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from itertools import count
from math import ceil, inf
from typing import NamedTuple

from benchmarks.fleet_trace import BLOCK_TOKENS, BLOCK_UNITS, UNIT_TOKENS, Arrival
from deploy.engine.block_pool import BlockPool
from deploy.engine.cache import KVSequence
from index.block_hash import HashIdentity
from index.event import KVEvent

IDENTITY = HashIdentity("xxhash_cbor", "0")


class Costs(NamedTuple):
    """An engine's speed and size. `capacity_tokens` is its KV cache."""

    prefill_us: float
    decode_us: float
    capacity_tokens: int
    step_tokens: int = 2048
    max_running: int = 64


@dataclass(eq=False)
class Job:
    """A request on its engine. Times are in seconds; `cached_tokens` is what its first scheduling found."""

    arrival: Arrival
    number: int
    started_s: float = inf
    first_token_s: float = inf
    finished_s: float = inf
    cached_tokens: int = 0
    sequence: KVSequence | None = None


class Progress(NamedTuple):
    """What a step has ended: requests whose first token came, and those that are over."""

    first_tokens: list[Job]
    finished: list[Job]


@dataclass(eq=False)
class SimulatedEngine:
    """Told what comes (`submit`) and the time (`step_ended`); says when it wants to be told again (`wakes_s`)."""

    costs: Costs
    wakes_s: float = inf
    computed_tokens: int = 0
    events: deque[tuple[float, list[KVEvent]]] = field(default_factory=deque)
    """Batches not yet taken, each with the time its step ended."""
    _waiting: deque[Job] = field(default_factory=deque)
    _prefilling: deque[Job] = field(default_factory=deque)
    _decoding: list[tuple[int, int, Job]] = field(default_factory=list)
    _steps: int = 0  # decode steps done
    _phase: _Phase | None = None
    _order: count[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self.pool = BlockPool(1 + self.costs.capacity_tokens // BLOCK_TOKENS, BLOCK_UNITS, IDENTITY)

    @property
    def running(self) -> int:
        """Requests that hold KV."""
        return len(self._prefilling) + len(self._decoding)

    @property
    def waiting(self) -> int:
        """Requests that do not yet."""
        return len(self._waiting)

    def submit(self, job: Job, now: float) -> None:
        """A request has come. It is looked at when the step under way has ended."""
        self._waiting.append(job)
        if self._phase is None:
            self._plan(now)
        elif not self._phase.chunks:  # decode steps were skipped over: stop at the end of this one
            done = max(1, ceil((now - self._phase.began_s) / self._decode_s - 1e-9))
            if done < self._phase.decode_steps:
                self._phase = self._phase._replace(decode_steps=done)
                self.wakes_s = self._phase.began_s + done * self._decode_s

    def step_ended(self, now: float) -> Progress:
        """It is `wakes_s`: take in what was computed, begin the next step."""
        phase = self._phase
        assert phase is not None
        self._steps += phase.decode_steps
        over = []
        while self._decoding and self._decoding[0][0] <= self._steps:
            over.append(heapq.heappop(self._decoding)[2])
        begun = [job for job, _ in phase.chunks if self._prefilled(job)]
        for job in begun:
            job.first_token_s = now
            self._prefilling.remove(job)
            over += self._decode(job)
        for job in over:
            assert job.sequence is not None
            self.pool.finish(job.sequence)
            job.finished_s = now
        self._publish(now)
        self._plan(now)
        return Progress(begun, over)

    @property
    def _decode_s(self) -> float:
        return self.costs.decode_us / 1e6

    def _plan(self, now: float) -> None:
        """Begin a step; several at once when all of them only decode."""
        chunks, tokens = self._chunks(now)
        if not chunks and not self._decoding:
            assert not self._waiting, "a request does not fit into the whole cache"
            self._phase, self.wakes_s = None, inf
            return
        self.computed_tokens += tokens
        decodes = 1 if chunks else self._decoding[0][0] - self._steps
        took = tokens * self.costs.prefill_us / 1e6 + (decodes * self._decode_s if self._decoding else 0.0)
        self._phase = _Phase(now, chunks, decodes if self._decoding else 0)
        self.wakes_s = now + took

    def _chunks(self, now: float) -> tuple[list[tuple[Job, int]], int]:
        """The prefills of this step as (job, units), allocated; and their tokens."""
        budget, chunks = self.costs.step_tokens // UNIT_TOKENS, []
        for job in self._prefilling:
            if budget <= 0:
                break
            assert job.sequence is not None
            sequence = job.sequence
            size = min(budget, len(sequence.tokens) - sequence.computed_tokens)
            fits = self.pool.extend(sequence, size)
            assert fits, "room was kept for admitted requests"
            chunks.append((job, size))
            budget -= size
        while self._waiting and budget > 0 and self.running < self.costs.max_running:
            job = self._waiting[0]
            admitted = self._admit(job, budget, now)
            if admitted is None:
                break
            self._prefilling.append(self._waiting.popleft())
            chunks.append((job, admitted))
            budget -= admitted
        return chunks, sum(size for _, size in chunks) * UNIT_TOKENS

    def _admit(self, job: Job, budget: int, now: float) -> int | None:
        if self._reserved() + len(job.arrival.prompt) + len(job.arrival.output) > self.pool.stats().total:
            return None
        sequence = self.pool.start(job.arrival.prompt, limit=budget)
        if sequence is None:
            return None
        job.sequence, job.started_s = sequence, now
        job.cached_tokens = sequence.cached_tokens * UNIT_TOKENS
        return len(sequence.pending)

    def _reserved(self) -> int:
        """Units that running requests hold or will hold, by whole blocks, as if nothing were shared."""
        jobs = [*self._prefilling, *(job for _, _, job in self._decoding)]
        return sum(len(job.arrival.prompt) + len(job.arrival.output) + 2 * BLOCK_UNITS for job in jobs)

    def _prefilled(self, job: Job) -> bool:
        assert job.sequence is not None
        self.pool.computed(job.sequence)
        return job.sequence.computed_tokens >= len(job.arrival.prompt)

    def _decode(self, job: Job) -> list[Job]:
        """Decode from now on; returned if its first token was its only one."""
        assert job.sequence is not None
        job.sequence.tokens.extend(job.arrival.output)
        fits = self.pool.extend(job.sequence, len(job.arrival.output))
        assert fits, "room was kept for admitted requests"
        self.pool.computed(job.sequence)
        if job.arrival.output_tokens == 1:
            return [job]
        heapq.heappush(self._decoding, (self._steps + job.arrival.output_tokens - 1, next(self._order), job))
        return []

    def _publish(self, now: float) -> None:
        events = self.pool.take_events()
        if events:
            self.events.append((now, events))


class _Phase(NamedTuple):
    """The step under way, or several that only decode."""

    began_s: float
    chunks: list[tuple[Job, int]]
    decode_steps: int
