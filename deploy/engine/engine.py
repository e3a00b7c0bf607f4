"""The engine: its ranks and tokenizer, built from the settings."""

from __future__ import annotations

import asyncio
import itertools
import time

import zmq.asyncio

from deploy.engine import mixed_steps, prefill_first
from deploy.engine.block_pool import BlockPool
from deploy.engine.byte_pairs import BytePairs, read_merges
from deploy.engine.cache import KVCache
from deploy.engine.compute import Compute, TimedCompute
from deploy.engine.event_wire import sglang_form, vllm_form
from deploy.engine.events import EventPublisher
from deploy.engine.radix_cache import RadixCache
from deploy.engine.rank import EventTiming, Rank
from deploy.engine.scheduler import Limits, Scheduler
from deploy.engine.settings import EngineSettings
from deploy.engine.slot_vectors import array_vector, tensor_vector
from index.page_hash import lora_id

STEP_S = 60.0
"""How long a step under way may take to end."""
STEP_POLL_S = 0.002


class Engine:
    """All ranks of one server. `run` has to be a task while it is used; `close` frees the ports."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.sleep_level: int | None = None
        self.is_dead = False
        self._running: asyncio.Task[None] | None = None
        self.started_at, began = time.time(), time.perf_counter()
        self.tokenizer = BytePairs(read_merges())
        self._context = zmq.asyncio.Context()
        self._turns = itertools.count()
        self._publishers: list[EventPublisher] = []
        try:
            self.ranks = [self._rank(number) for number in range(settings.dp_size)]
        except BaseException:
            self.close()
            raise
        self.startup_s = time.perf_counter() - began

    def rank(self, wanted: int | None) -> Rank:
        """The rank that a request goes to: the wanted one (IndexError when there is none), else as the engines choose.

        vLLM's balancer takes the one with the least waiting, then running requests; SGLang takes turns.
        """
        if wanted is not None:
            return self.ranks[wanted]
        if self.settings.face == "sglang":
            return self.ranks[next(self._turns) % len(self.ranks)]
        return min(self.ranks, key=lambda rank: 4 * len(rank.scheduler.waiting) + len(rank.scheduler.running))

    def clear(self) -> bool:
        """Empty all caches; False when one is in use, which then stays as it is."""
        cleared = [rank.clear() for rank in self.ranks]
        return all(cleared)

    async def sleep(self, level: int) -> None:
        """Abort all requests and start none until `wake_up`; from level 1 on the caches are emptied too.

        TimeoutError when a step under way does not end.
        """
        self.sleep_level = level
        for rank in self.ranks:
            rank.pause()
        async with asyncio.timeout(STEP_S):
            while any(rank.scheduler.running for rank in self.ranks):  # noqa: ASYNC110  (rare; a step is short)
                await asyncio.sleep(STEP_POLL_S)
        if level:
            self.clear()

    def wake_up(self) -> None:
        """Serve again, first what has come meanwhile."""
        self.sleep_level = None
        for rank in self.ranks:
            rank.resume()

    async def run(self) -> None:
        """Serve requests and replays until cancelled or `die`; ends with the error when a part fails."""
        self._running = asyncio.current_task()
        async with asyncio.TaskGroup() as tasks:
            for rank in self.ranks:
                tasks.create_task(rank.run())
            for publisher in self._publishers:
                tasks.create_task(publisher.serve_replays())

    def die(self) -> None:
        """As when the process that computes is killed and its API server lives on: the event sockets are gone.

        vLLM (VLLM_KEEP_ALIVE_ON_ENGINE_DEATH): requests end with 500, `/health` is 503. SGLang, until its API server
        notices: requests, `/health` and `/server_info` are not answered. Everything else is.
        """
        self.is_dead = True
        for rank in self.ranks if self.settings.face == "vllm" else ():
            rank.die()
        if self._running is not None:
            self._running.cancel()
        for publisher in self._publishers:
            publisher.close()

    def close(self) -> None:
        """Close all sockets."""
        for publisher in self._publishers:
            publisher.close()
        self._context.term()

    def _rank(self, number: int) -> Rank:
        settings = self.settings
        vllm = settings.face == "vllm"
        cache: KVCache = _block_pool(settings) if vllm else _radix_cache(settings)
        limits = Limits(settings.max_running, settings.step_tokens, settings.block_size)
        scheduler = Scheduler(cache, limits, mixed_steps.plan if vllm else prefill_first.plan)
        return Rank(
            number,
            scheduler,
            _compute(settings, self.tokenizer, cache),
            self._publisher(number),
            vllm_form(list(settings.adapters)) if vllm else sglang_form,
            EventTiming() if vllm else EventTiming(settings.decode_log_interval, when_idle=True),
            settings.max_queued,
        )

    def _publisher(self, number: int) -> EventPublisher | None:
        settings = self.settings
        if settings.events_port is None or settings.replay_port is None:
            return None
        ports = settings.events_port + number, settings.replay_port + number
        publisher = EventPublisher(self._context, settings.host, *ports, settings.topic, settings.buffer_steps)
        self._publishers.append(publisher)
        return publisher


def _block_pool(settings: EngineSettings) -> BlockPool:
    blocks = settings.cache_tokens // settings.block_size + 1
    return BlockPool(blocks, settings.block_size, settings.hash_identity(), overlap=True)


def _radix_cache(settings: EngineSettings) -> RadixCache:
    return RadixCache(
        settings.cache_tokens,
        settings.block_size,
        policy=settings.policy,
        bigrams=settings.eagle,
        overlap=True,
        dynamo=settings.dynamo,
        lora_names={lora_id(name, path): name for name, path in settings.adapters.items()},
        vector=tensor_vector if settings.compute == "torch" else array_vector,
    )


def _compute(settings: EngineSettings, tokenizer: BytePairs, cache: KVCache) -> Compute:
    if settings.compute == "torch":
        from deploy.engine.torch_compute import TorchCompute  # the one import that needs the extra

        return TorchCompute(tokenizer.size, cache.slots_total, settings.seed)
    return TimedCompute(tokenizer, settings.prefill_us, settings.decode_us, settings.seed, settings.mean_output_tokens)
