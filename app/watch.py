"""One instance watched: what it offers is discovered, every rank's events are followed, its load is read."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

import structlog

from app.adapters import take_list
from app.contact import Condition, Contact
from app.ejection import NEVER
from app.following import Following
from app.instance import Instance, TrackedWorker
from app.serving_names import serves_other
from app.surroundings import Surroundings
from engine.discovery import EngineUnreachable, facts
from engine.facts import EngineFacts
from engine.health import complaint, illness
from engine.inquiry import Inquiry
from engine.load import EngineLoad, load, of_ranks
from engine.model_cards import model_cards
from engine.wire import sglang_usable
from index.worker import EngineKind, Trust

_log = structlog.stdlib.get_logger("kvroute.watch")

TRIED_AFTER_S = 3.0
"""How long an instance that does not answer keeps the service from being ready."""
CAUGHT_UP_AFTER_S = 60.0
"""How long one whose replay is being applied does."""
FOLLOW_AFTER_S = 1.0
"""How long the first look at an engine may hold back its event streams."""
POLL_COST_S = 0.01
"""About what asking one engine costs this process."""
LOOK_AGAIN_S = 0.5
"""Least time between two looks at an engine that answers, however many reasons there are for one."""
DOWN_LOOK_S = 0.5
"""Between two looks at an engine that does not."""
AT_ONCE_S = 0.02
"""Least time between two looks that a sign against the engine gives rise to."""
BEAT_SHARE = 2 / 3
"""What of the silence that is allowed between two beats one may wait for its answer; the rest is for another."""
BROKEN_S = {EngineKind.VLLM: 0.5, EngineKind.SGLANG: 1.5}
"""So long after its event stream broke off an engine's word that it is well counts for nothing: its API server outlives
its core, and takes this long to notice (vLLM 0.14 s, SGLang 1 s)."""
DOUBT_LOOK_S = 0.1
"""Between two looks at an engine in doubt."""


class Watch:
    """The tasks of one instance. `run` ends only by cancellation (the instance is removed, or the process stops).

    A *look* asks for all that the engine offers and whether it can serve; only a look that is answered makes an
    instance eligible. A *beat* reads its load and one thing more, each second. Every sign goes into `Instance.contact`.
    """

    def __init__(self, instance: Instance, around: Surroundings) -> None:
        self._instance = instance
        self._around = around
        self._look_again = asyncio.Event()
        self._looked = asyncio.Event()
        self._at_once = False
        self._beats = 0
        self._awaited: asyncio.Future[None] | None = None
        self._following = Following(instance, around, self._look_again.set, self._link_changed)

    def enter(self) -> None:
        """Make the instance's workers known to the index."""
        for tracked in self._instance.workers.values():
            self._following.enter(tracked)

    def leave(self) -> None:
        """Free everything the instance's workers hold. To be called when `run` has ended."""
        for tracked in self._instance.workers.values():
            self._around.index.remove(tracked.worker)

    def follow_anew(self, rank: int) -> None:
        """Take a rank's state from the state store, where a better one lies."""
        self._following.follow_anew(rank)

    def suspect(self, why: str) -> None:
        """Somebody else saw a sign against the engine."""
        self._sign(self._instance.contact.suspected(time.monotonic(), why))
        self._ask_at_once()

    def _ask_at_once(self) -> None:
        """Look now, not at the next interval."""
        self._at_once = True
        self._look_again.set()

    def look_now(self) -> asyncio.Future[None]:
        """Ask for a look soon; done when one that begins from now on is over. However many ask, it is one look."""
        self._look_again.set()
        if self._awaited is None:
            self._awaited = asyncio.get_running_loop().create_future()
        return self._awaited

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._be_tried())
            tasks.create_task(self._repeat(lambda: self._look(tasks), self._until_look))
            tasks.create_task(self._follow_soon(tasks))
            tasks.create_task(self._repeat(self._beat, self._until_beat))

    async def _follow_soon(self, tasks: asyncio.TaskGroup) -> None:
        """Adapters' paths should be known before their blocks come; an engine that does not tell is followed too."""
        try:
            async with asyncio.timeout(FOLLOW_AFTER_S):
                await self._looked.wait()
        except TimeoutError:
            pass
        self._following.update(tasks)

    async def _be_tried(self) -> None:
        """Readiness waits for an engine that does not answer, longer for one whose replay is being applied."""
        await asyncio.sleep(TRIED_AFTER_S)
        end = time.monotonic() + CAUGHT_UP_AFTER_S - TRIED_AFTER_S
        workers = self._instance.workers
        while time.monotonic() < end and any(one.link_up and one.catching_up for one in workers.values()):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_AGAIN_S)
        self._instance.tried = True

    async def _repeat(self, step: Callable[[], Awaitable[None]], wait: Callable[[], Awaitable[None]]) -> None:
        while True:
            await step()
            await wait()

    @property
    def _share_s(self) -> float:
        """What a round over the whole fleet takes: a large one is asked less often, not all the time."""
        return POLL_COST_S * len(self._around.fleet)

    # Signs

    def _link_changed(self, up: bool) -> None:
        instance, now = self._instance, time.monotonic()
        if up:
            self._sign(instance.contact.found_stream(now))
        else:
            self._sign(instance.contact.lost_stream(now))
        if not instance.contact.answers:
            self._ask_at_once()

    def _unanswered(self, inquiry: Inquiry) -> None:
        """Not one question was answered: refused, or not in time."""
        instance, now, why = self._instance, time.monotonic(), inquiry.failure
        if inquiry.timed_out:
            too_long = now - instance.heard_at >= self._around.settings.availability.silent_s - AT_ONCE_S
            self._sign(instance.contact.silent(now, why, too_long=too_long))
        else:
            self._sign(instance.contact.refused(now, why))
        if instance.contact.condition is Condition.DOUBTED:
            self._ask_at_once()

    def _sign(self, contact: Contact) -> None:
        """Take over what is known after a sign."""
        instance = self._instance
        before, instance.contact = instance.contact, contact
        if contact.condition is not before.condition:
            level = logging.INFO if contact.answers else logging.WARNING
            _log.log(level, "engine " + contact.condition.name.lower(), instance=instance.id, reason=contact.why)

    # Looks

    async def _until_look(self) -> None:
        """The interval, shorter while the engine does not answer or when its events show something new."""
        contact, interval_s = self._instance.contact, self._around.settings.polling.discovery_interval_s
        soon_s = interval_s if contact.answers else min(interval_s, max(DOWN_LOOK_S, 2 * self._share_s))
        if contact.condition is Condition.DOUBTED:
            soon_s = min(soon_s, DOUBT_LOOK_S)
        least_s, began = min(soon_s, max(LOOK_AGAIN_S, self._share_s)), time.monotonic()
        while (left_s := soon_s - (time.monotonic() - began)) > 0:
            try:
                async with asyncio.timeout(left_s):
                    await self._look_again.wait()
            except TimeoutError:
                break
            if self._at_once:
                await asyncio.sleep(AT_ONCE_S)
                break
            if time.monotonic() - began >= least_s:
                break
            self._look_again.clear()
            soon_s = least_s
        self._look_again.clear()
        self._at_once = False

    async def _look(self, tasks: asyncio.TaskGroup) -> None:
        """Ask for everything the engine tells, and whether it can serve."""
        instance = self._instance
        awaited, self._awaited = self._awaited, None
        doubted = not instance.contact.answers
        inquiry = Inquiry(self._around.client, instance.address, self._look_timeout_s)
        async with self._around.doubts if doubted and instance.contact.served else self._around.polls:
            began = time.monotonic()
            found, complaints = await asyncio.gather(
                self._facts(inquiry), self._complaints(thorough=doubted and instance.contact.served)
            )
        self._hear(inquiry)
        if isinstance(found, EngineUnreachable):
            self._not_told(inquiry)
        elif inquiry.timed_out and self._lost_a_stream():
            self._unanswered(inquiry)  # an API server that outlives its scheduler answers some questions for a while
        else:
            self._told(found, complaints, began)
            self._following.update(tasks)
        self._looked.set()
        if awaited is not None and not awaited.done():
            awaited.set_result(None)

    def _hear(self, inquiry: Inquiry) -> None:
        """Note when it last answered: not when the last question was given up."""
        if inquiry.heard_at is not None:
            self._instance.heard_at = max(self._instance.heard_at, inquiry.heard_at)

    def _lost_a_stream(self) -> bool:
        """Whether an event stream that was there is away."""
        return any(one.link_lost_at is not None for one in self._instance.workers.values())

    @property
    def _look_timeout_s(self) -> float:
        """In doubt only what is left of the silence that is allowed."""
        timeout_s, contact = self._around.settings.polling.timeout_s, self._instance.contact
        if contact.condition is not Condition.DOUBTED:
            return timeout_s
        left_s = self._around.settings.availability.silent_s - (time.monotonic() - self._instance.heard_at)
        return min(timeout_s, max(left_s, 0.1))

    async def _facts(self, inquiry: Inquiry) -> EngineFacts | EngineUnreachable:
        try:
            return await facts(inquiry, self._instance.settings.model)
        except EngineUnreachable as error:
            return error

    async def _complaints(self, *, thorough: bool) -> str | None:
        """Why the engine cannot serve, as it says itself."""
        address = self._instance.address
        inquiry = Inquiry(self._around.client, address, self._look_timeout_s)
        if address.kind is EngineKind.VLLM:
            said = await complaint(inquiry)
            return "does not answer GET /health" if inquiry.timed_out else said
        quick, slow = await asyncio.gather(
            complaint(inquiry), complaint(inquiry, thorough=True) if thorough else asyncio.sleep(0)
        )
        return quick or slow

    def _not_told(self, inquiry: Inquiry) -> None:
        """Nothing usable was answered."""
        instance, now = self._instance, time.monotonic()
        ill = next(filter(None, (illness(*answer) for answer in inquiry.statuses.items())), None)
        if ill is not None:
            self._sign(instance.contact.unhealthy(now, ill))
        else:
            self._unanswered(inquiry)

    def _told(self, told: EngineFacts, complaints: str | None, began: float) -> None:
        """Take over what a look found that began then: of a sign that came meanwhile it tells nothing."""
        instance, now = self._instance, time.monotonic()
        take_list(instance, told, began, anew=_other_process(instance.facts, told))
        known = joined(instance.facts, told)
        if known != instance.facts:
            self._learn(known)
        else:
            self._following.confirm()
        instance.welcome = instance.welcome or not told.unauthorized
        if complaints is not None:
            self._sign(instance.contact.unhealthy(now, complaints))
        elif told.unauthorized and instance.welcome:
            self._sign(instance.contact.unwelcome(now, told.warning or "answers 401 Unauthorized"))
        elif not self._contradicted(began, now):
            self._sign(instance.contact.looked(now))
        instance.tried = instance.tried or not (instance.settings.events or known.events)

    def _contradicted(self, began: float, now: float) -> bool:
        """Whether a sign against the engine outweighs a good look that began then: it came later, or is too fresh."""
        instance = self._instance
        lost = [one.link_lost_at for one in instance.workers.values() if one.link_lost_at is not None]
        broken = any(now - at < BROKEN_S[instance.settings.engine] for at in lost)
        later = instance.contact.condition is Condition.DOUBTED and instance.contact.since >= began
        return broken or later

    def _learn(self, facts: EngineFacts) -> None:
        instance, former = self._instance, self._instance.facts
        instance.facts = facts
        self._around.fleet.changed()
        if instance.settings.engine is EngineKind.VLLM:
            self._around.adapters.know(instance.settings.model, facts.adapters)
        self._judge(facts)
        other = _other_process(former, facts)
        if other:
            instance.ejection = NEVER
            self._following.told_process(facts.fingerprint)
            if facts.dp_size and instance.settings.rank_count is None:
                self._following.drop_ranks(facts.dp_size)
        self._following.learn(anew=other)
        if facts.warning and facts.warning != former.warning:
            _log.warning("engine advice", instance=instance.id, advice=facts.warning)

    def _judge(self, facts: EngineFacts) -> None:
        """Events of a release that cannot be read, or of another model, are not used."""
        instance = self._instance
        release = sglang_usable(facts.version or "") if instance.settings.engine is EngineKind.SGLANG else None
        other = serves_other(instance.settings.model, facts)
        was, instance.unusable = instance.unusable, release or other
        if instance.unusable is not None and was is None:
            for tracked in instance.workers.values():
                self._around.index.restart(tracked.worker)
                self._around.discard(tracked.worker)
                self._around.began(tracked.worker)
                tracked.trust = Trust.NONE
            _log.error("instance refused", instance=instance.id, advice=instance.unusable)
        elif instance.unusable is None and was is not None:
            self._following.use()

    # Beats

    async def _until_beat(self) -> None:
        await asyncio.sleep(max(self._around.settings.polling.load_interval_s, self._share_s))

    @property
    def _beat_timeout_s(self) -> float:
        """So short that a second question is possible before the engine was silent for too long."""
        settings = self._around.settings
        left_s = settings.availability.silent_s - settings.polling.load_interval_s
        return min(settings.polling.timeout_s, max(left_s * BEAT_SHARE, 0.2))

    async def _beat(self) -> None:
        """Read the load, and in turn whether the engine is well and what it serves."""
        instance = self._instance
        if not instance.contact.answers:
            self._take_loads({})
            return
        self._beats += 1
        inquiry = Inquiry(self._around.client, instance.address, self._beat_timeout_s)
        async with self._around.polls:
            loads, words = await asyncio.gather(load(inquiry, instance.own_names), self._one_more(inquiry))
        self._take_loads(loads)
        self._hear(inquiry)
        if inquiry.reached:
            if words is not None:
                self._sign(instance.contact.unhealthy(time.monotonic(), words))
            if inquiry.refused and instance.welcome:
                self._ask_at_once()
        elif instance.contact.answers:
            self._unanswered(inquiry)

    async def _one_more(self, inquiry: Inquiry) -> str | None:
        """Why the engine cannot serve, as it says; asks for a look when it serves something else than it did."""
        known = self._instance.facts
        if self._beats % 2:
            return await complaint(inquiry)
        began, answer = time.monotonic(), await inquiry.ask("/v1/models")
        if answer is not None:
            cards = model_cards(answer)
            if (cards.models, cards.adapters) == (known.models, known.adapters):
                self._instance.listed_at = began
            else:
                self._ask_at_once()
        return None

    def _take_loads(self, loads: dict[int, EngineLoad]) -> None:
        own_ranks = [self._instance.facts.own_rank(rank) for rank in range(len(self._instance.workers))]
        loads = of_ranks(loads, own_ranks)
        now = time.monotonic()
        only = next(iter(loads.values())) if len(loads) == len(self._instance.workers) == 1 else None
        for rank, tracked in self._instance.workers.items():
            self._take_load(tracked, loads.get(rank, only), now)

    def _take_load(self, tracked: TrackedWorker, load: EngineLoad | None, now: float) -> None:
        """A sleeping engine holds nothing. It sleeps until it says otherwise."""
        tracked.load, tracked.load_at = load, now if load is not None else None
        if load is None or load.asleep is None:
            return
        if load.asleep and not tracked.asleep:
            self._around.index.clear(tracked.worker)
            self._around.discard(tracked.worker)
            self._around.metrics.reset(tracked.worker, "asleep")
            tracked.resets["asleep"] += 1
        tracked.asleep = load.asleep


def joined(known: EngineFacts, told: EngineFacts) -> EngineFacts:
    """What is known now. A process that did not answer every question this time has not changed."""
    if _other_process(known, told):
        return told
    cards = told if told.models or told.adapters else known
    streams = known if told.unauthorized and not told.events else told
    return told._replace(
        version=told.version or known.version,
        block_size=told.block_size or known.block_size,
        dp_size=told.dp_size or known.dp_size,
        prefix_match_unit=told.prefix_match_unit or known.prefix_match_unit,
        fingerprint=told.fingerprint or known.fingerprint,
        adapters=cards.adapters,
        models=cards.models,
        roots=cards.roots,
        events=streams.events,
        replay=streams.replay,
        topic=streams.topic,
        ranks=told.ranks or known.ranks,
        adapters_loadable=told.adapters_loadable or (cards is known and known.adapters_loadable),
        hash_algorithm=told.hash_algorithm or known.hash_algorithm,
        dynamo_format=known.dynamo_format if told.dynamo_format is None else told.dynamo_format,
    )


def _other_process(known: EngineFacts, told: EngineFacts) -> bool:
    return None not in (known.fingerprint, told.fingerprint) and known.fingerprint != told.fingerprint
