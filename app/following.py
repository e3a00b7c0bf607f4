"""The event streams of one instance's ranks: which are followed, from where, each in a task of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import structlog
import zmq

from app.hash_check import HashCheck
from app.ingest import WorkerIngest
from app.instance import Instance, TrackedWorker
from app.instance_settings import MAX_RANKS
from app.rank_endpoints import Numbers, Place, named_ranks
from app.state_writer import StateWriter
from app.stream_work import StreamWork
from app.surroundings import Surroundings
from app.warm_start import Restored, WarmStart
from engine.discovery import fingerprint
from engine.facts import EngineFacts
from engine.listener import Listener, Source
from index.pool import WorkerSpec
from index.worker import EngineKind, Trust
from store.state import StateError

_log = structlog.stdlib.get_logger("kvroute.follow")

RETRY_S = 5.0
"""Between two attempts to open sockets."""


@dataclass(slots=True)
class _Stream:
    """A rank's stream: the source that is followed, the task, and what belongs to the listener that is open."""

    source: Source
    task: asyncio.Task[None]
    listener: Listener | None = None
    ingest: WorkerIngest | None = None
    check: HashCheck | None = None
    scope: asyncio.Timeout | None = None


class Following:
    """Follows every rank whose endpoint is known, and only where the engine says it is now."""

    def __init__(
        self,
        instance: Instance,
        around: Surroundings,
        look_again: Callable[[], None],
        link_changed: Callable[[bool], None],
    ) -> None:
        """`look_again` asks for a discovery soon: something was seen that the last one does not explain.

        `link_changed` is told when an event stream is there and when it is lost.
        """
        self._instance = instance
        self._around = around
        self._look_again = look_again
        self._link_changed = link_changed
        self._streams: dict[int, _Stream] = {}

    def update(self, tasks: asyncio.TaskGroup) -> None:
        """Take over what is known now: further ranks, endpoints that were learnt or have changed."""
        instance, own = self._instance, self._instance.settings
        told = instance.facts.dp_size or max([1, *(rank + 1 for rank in instance.facts.events)])
        ranks = own.rank_count or max(told, named_ranks(own.events, instance.facts.dp_size))
        lost = [rank for rank, tracked in instance.workers.items() if rank >= ranks and not tracked.link_up]
        if own.rank_count is None and lost and len(lost) == len(instance.workers) - ranks:
            self.drop_ranks(ranks)
        for rank in range(min(ranks, MAX_RANKS)):
            if rank not in instance.workers:
                self.enter(self._around.fleet.add_worker(instance, rank))
            source = self._source(rank)
            stream = self._streams.get(rank)
            if source is not None and (stream is None or stream.source != source):
                self._switch(tasks, rank, source)

    def drop_ranks(self, count: int) -> None:
        """The engine came back with fewer ranks: those from `count` on are gone."""
        for rank in [rank for rank in self._instance.workers if rank >= count]:
            stream = self._streams.pop(rank, None)
            if stream is not None:
                stream.task.cancel()
            self._around.index.remove(self._instance.workers[rank].worker)
            self._around.discard(self._instance.workers[rank].worker)
            self._around.fleet.remove_worker(self._instance, rank)

    def enter(self, tracked: TrackedWorker) -> None:
        """Make a worker known to the index, with all that is known of its engine."""
        self._around.metrics.follow(tracked.worker)
        self._around.index.add(tracked.worker, self.spec())
        self._hint(tracked)

    def confirm(self) -> None:
        """Discovery found what it had found before: to workers whose process is new that may be news."""
        for tracked in self._instance.workers.values():
            self._hint(tracked)

    def told_process(self, fingerprint: str | None) -> None:
        """Discovery met another process than before: every stream of the former one begins anew."""
        for stream in self._streams.values():
            if stream.listener is not None and fingerprint is not None:
                stream.listener.told_process(fingerprint)

    def learn(self, *, anew: bool) -> None:
        """Tell the index what discovery found; `anew`: in another process than before."""
        for tracked in self._instance.workers.values():
            self._around.index.respec(tracked.worker, self.spec())
            self._hint(tracked, anew=anew)
        for stream in self._streams.values():
            if stream.check is not None:
                stream.check.facts_learnt()
            if stream.ingest is not None:
                stream.ingest.refile()

    def use(self) -> None:
        """The engine's release can be used after all: get what was passed over."""
        for tracked in self._instance.workers.values():
            tracked.trust = Trust.PARTIAL if tracked.link_up else Trust.NONE
        for stream in self._streams.values():
            if stream.listener is not None:
                stream.listener.resync("release")

    def spec(self) -> WorkerSpec:
        """What the index must know of the instance's workers."""
        own = self._instance.settings
        unit = own.prefix_match_unit if own.prefix_match_unit is not None else self._instance.facts.prefix_match_unit
        verify = own.engine is EngineKind.VLLM and self._around.identities.all_verified(own.model)
        return WorkerSpec(own.model, own.engine, own.speculative == "eagle", unit, verify, own.adapter_extra_keys)

    def _hint(self, tracked: TrackedWorker, *, anew: bool = False) -> None:
        facts = self._instance.facts
        if self._around.index.hint(tracked.worker, facts.dynamo_format, _listed(facts), anew=anew):
            self._around.discard(tracked.worker)  # it does not tell
            self._around.began(tracked.worker)

    def _source(self, rank: int) -> Source | None:
        own, facts, tracked = self._instance.settings, self._instance.facts, self._instance.workers[rank]
        place = Place(own.url, facts, Numbers(facts, own.events), rank)
        try:
            events = place.events(own.events)
            replay = place.replay(own.replay, own.events)
        except ValueError as error:
            tracked.stream_advice = str(error)
            return None
        if events is None:
            return None
        return Source(events, replay, own.topic or (facts.topic or "" if not own.events else ""))

    def _switch(self, tasks: asyncio.TaskGroup, rank: int, source: Source) -> None:
        tracked, former = self._instance.workers[rank], self._streams.pop(rank, None)
        if former is not None:
            former.task.cancel()
            self._around.index.restart(tracked.worker)
            self._around.began(tracked.worker)
            tracked.link_up, tracked.link_lost_at, tracked.trust = False, None, Trust.NONE
            tracked.catching_up = tracked.behind = False
            _log.info("event endpoint changed", instance=self._instance.id, dp_rank=rank, endpoint=source.events)
        self._note_stream(tracked, source)
        self._streams[rank] = _Stream(source, tasks.create_task(self._follow(rank, tracked, source)))

    def _note_stream(self, tracked: TrackedWorker, source: Source) -> None:
        self._around.fleet.note_stream(tracked, (source.events, source.topic))
        tracked.stream_since, tracked.stream_advice = time.monotonic(), None
        if tracked.sharing:
            names = ", ".join(tracked.sharing)
            _log.error("event endpoint shared", instance=tracked.worker.instance, endpoint=source.events, others=names)

    async def _follow(self, rank: int, tracked: TrackedWorker, source: Source) -> None:
        around = self._around
        while True:
            restored = await self._restored(tracked)
            resume = None if restored is None else restored.position
            listener = Listener(around.context, source, around.limits, self._fingerprint, resume, bells=around.bells)
            check = self._check(tracked, listener)
            stream = self._streams[rank]
            stream.listener, stream.check = listener, check
            ingest = stream.ingest = WorkerIngest(
                self._instance,
                tracked,
                around.index,
                around.metrics,
                check=check,
                look_again=self._look_again,
                fetch_again=partial(listener.resync, known_too=True),
                link_changed=self._link_changed,
                writer=self._writer,
                restored=restored,
            )
            try:
                async with asyncio.timeout(None) as stream.scope:
                    await self._take_all(listener, ingest, tracked)
            except TimeoutError:  # `follow_anew` asked for it
                continue
            except zmq.ZMQError as error:
                advice = f"the event endpoint {source.events} cannot be used: {error}"
                if tracked.stream_advice != advice:
                    _log.error("event endpoint cannot be used", instance=self._instance.id, advice=advice)
                tracked.stream_advice = advice
            finally:
                stream.scope = None
            await asyncio.sleep(RETRY_S)

    def _check(self, tracked: TrackedWorker, listener: Listener) -> HashCheck | None:
        around, own = self._around, self._instance.settings
        if own.engine is not EngineKind.VLLM:
            return None
        return HashCheck(
            self._instance,
            tracked,
            around.index,
            around.adapters,
            identity=around.identities.of(own.model),
            enforce=around.identities.enforced(own.model),
            resync=listener.resync,
            look_again=self._look_again,
        )

    @property
    def _writer(self) -> StateWriter | None:
        """Who takes this instance's state; None when none is kept, or not for engines that show their tokens."""
        kept = self._instance.settings.engine is EngineKind.VLLM or self._around.settings.state_tokens
        return self._around.writer if kept else None

    async def _restored(self, tracked: TrackedWorker) -> Restored | None:
        """The worker's stored state in the index; None when there is none, or the store does not answer in time."""
        around, writer, own = self._around, self._writer, self._instance.settings
        if writer is None:
            around.discard(tracked.worker)  # what was stored before it was switched off
            return None
        writer.began(tracked.worker)
        identity = around.identities.of(own.model) if own.engine is EngineKind.VLLM else None
        start = WarmStart(around.index, self._instance, tracked, identity, around.identities.enforced(own.model))
        try:
            return await start.load(writer.store)
        except StateError as error:
            self._around.metrics.state_errors.labels(error.op).inc()
            _log.warning("stored state not read", instance=self._instance.id, op=error.op, reason=error.reason)
            return None

    def follow_anew(self, rank: int) -> None:
        """Drop what the rank holds and go on from the state store, where a better state lies."""
        stream = self._streams.get(rank)
        if stream is not None and stream.scope is not None and not stream.scope.expired():
            stream.scope.reschedule(asyncio.get_running_loop().time())

    async def _take_all(self, listener: Listener, ingest: WorkerIngest, tracked: TrackedWorker) -> None:
        work = StreamWork(self._instance, tracked, listener, ingest, self._writer)
        async with listener:
            with self._around.turns.of(work) as turn:
                listener.tell(turn.ask)
                await turn.ended

    async def _fingerprint(self) -> str | None:
        address, timeout_s = self._instance.address, self._around.settings.polling.timeout_s
        return await fingerprint(self._around.client, address, timeout_s)


def _listed(facts: EngineFacts) -> Mapping[str, str] | None:
    """The adapters; None when the engine did not list what it serves."""
    return facts.adapters if facts.models or facts.adapters else None
