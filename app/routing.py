"""One routing request, from its fields to the answer. With token ids there is no await between the two."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import structlog

from app.adapters import AdapterLabels
from app.candidates import candidates_for, unknown_names
from app.ejection import EjectionRules, blame
from app.fleet import Fleet, Target
from app.instance import Instance
from app.instance_body import ErrorReport, FinishedReport
from app.logs import Repeats
from app.look_ups import LookUps
from app.metrics import Metrics
from app.problems import Problem
from app.route_body import check_prompt
from app.route_request import RouteRequest
from app.serving_names import lists_adapter, split_name
from app.settings import LimitSettings
from app.shown import shown
from app.standings import Standings
from app.tokenising import tokens_of
from engine.http_client import HttpClient
from engine.tokenise import TokeniseError
from index.index import Index
from index.prompt import Prompt, WorkerMatch
from index.worker import EngineKind, Trust, Worker
from router.candidate import Candidate, Decision, RouteQuery
from router.request_id import new_request_id
from router.route import Router

_log = structlog.stdlib.get_logger("kvroute.route")

SHOWN_NAMES = 20
"""Unknown candidates that an error names at most."""
WAIT_FOR_MODEL_S = 5
"""When a client may ask again for a model that has no instance now."""
TOKENISE_LOG_S = 10.0
"""One line per model and kind of failure in so many seconds."""


class Routed(NamedTuple):
    """What was decided, with everything an answer may show. `tokens` is None when the text could not be tokenised.

    `candidates` are empty where nobody asked to explain.
    """

    request_id: str
    request: RouteRequest
    target: Target
    tokens: bytes | None
    chosen: Candidate
    candidates: list[Candidate]
    decision: Decision
    detail: str | None


class Sent(msgspec.Struct, gc=False, frozen=True):
    """What a later report on a request is compared with. Tokens; None where the text was not tokenised.

    Many are kept: the garbage collector need not see them.
    """

    model: str
    instance: str
    prompt: int | None
    reusable: int | None
    at: float
    """When it was sent, in seconds of the loop's clock."""


@dataclass(slots=True)
class Routing:
    """Everything a decision needs. One object per process."""

    fleet: Fleet
    index: Index
    adapters: AdapterLabels
    router: Router
    metrics: Metrics
    client: HttpClient
    limits: LimitSettings
    ejection: EjectionRules = EjectionRules()
    suspect: Callable[[str, str], None] = lambda instance, why: None
    """Told of an instance that a gateway could not reach, and of the reason."""
    repeats: Repeats = field(default_factory=lambda: Repeats(TOKENISE_LOG_S))
    look_ups: LookUps = field(default_factory=LookUps)
    standings: Standings = field(init=False)

    def __post_init__(self) -> None:
        self.standings = Standings(self.fleet, self.router)

    def target(self, request: RouteRequest) -> Target:
        """What the request's model means. Raises Problem 404 with the models there are, 503 for one that may return."""
        target = self.fleet.target(request.model, request.lora_path)
        if target is None:
            raise self._unserved(request.model)
        if request.lora is not None and target.lora is not None and request.lora != target.lora:
            raise Problem(422, "model names another adapter than lora", field="lora")
        if request.lora_path is not None and target.asked.base is None and request.lora_path != target.lora:
            raise Problem(422, "model names another adapter than lora_path", field="lora_path")
        return target

    async def found(self, request: RouteRequest) -> Target:
        """As `target`; where nobody is known to serve what is named, those that could are looked at before."""
        if not self._is_known(request):
            await self.look_ups.wait(self._could_serve(request), lambda: self._is_known(request))
        return self.target(request)

    async def route(self, request: RouteRequest) -> Routed:
        """Tokenise when there is text, then decide. Raises Problem."""
        target = await self.found(request)
        if request.tokens is not None:
            return self.decide(request, target, request.tokens, None)
        try:
            target, tokens = await self.tokenised(request, target)
        except TokeniseError as error:
            return self._untokenised(request, self.target(request), error)
        return self.decide(request, target, tokens, None)

    async def tokenised(self, request: RouteRequest, target: Target) -> tuple[Target, bytes]:
        """The text's token ids, and what the model means by then: the fleet may have changed while an engine was asked.

        Raises TokeniseError, and Problem as `target` and for a prompt that is too long.
        """
        tokens = await tokens_of(request, target, self.client, self.limits)
        check_prompt(tokens, request.mm_items, self.limits.prompt_tokens)
        return self.target(request), tokens

    def matches(self, request: RouteRequest, target: Target, tokens: bytes) -> dict[Worker, WorkerMatch]:
        """Per worker, what it holds of the prompt."""
        prompt = Prompt(tokens, None, request.cache_salt, request.extra_key, request.mm_items)
        if (request.lora or target.lora) is None and len(target.models) == 1 and target.asked.form == "plain":
            return self.index.match(target.model, prompt, target.workers)
        found: dict[Worker, WorkerMatch] = {}
        for (model, label, path), asked in self._by_adapter(target, request.lora).items():
            found |= self.index.match(model, prompt._replace(lora=label), asked, path)
        return found

    def told(self, request: RouteRequest, target: Target, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The candidates with the trust that an answer may claim: what is held of an adapter may be of others."""
        if (request.lora or target.lora) is None:
            return list(candidates)
        return [
            one._replace(trust=Trust.PARTIAL)
            if one.trust is Trust.EXACT and self._may_be_stale(request, target, one.worker)
            else one
            for one in candidates
        ]

    def decide(self, request: RouteRequest, target: Target, tokens: bytes | None, detail: str | None) -> Routed:
        """Match, decide, and unless it is a dry run leave the trace. Synchronous. Raises Problem 503."""
        now = time.monotonic()
        matches = {} if tokens is None else self.matches(request, target, tokens)
        length = None if tokens is None else len(tokens) >> 2
        query = RouteQuery(tokens, _namespace(request, target), request.session_id, length)
        eligible = self.standings.eligible(request, target, now)
        standing = eligible.standing
        if standing is None or request.explain:
            candidates = self.told(request, target, candidates_for(request, target, matches, now))
            decision = self.router.decide(query, candidates, now)
            if decision is None:
                raise _nobody(request, target, candidates)
        else:
            candidates = []
            decision = self.router.decide_among(query, standing, matches if request.reads_cache else {}, now)
        match = matches.get(decision.worker)
        chosen = eligible.chosen(decision.worker, match, reads_cache=request.reads_cache)
        if request.extra_key is not None or (request.lora or target.lora) is not None:
            chosen = self._apart(request, target, chosen, now)
        routed = Routed(new_request_id(time.time()), request, target, tokens, chosen, candidates, decision, detail)
        if not request.dry_run:
            instance = eligible.instance(decision.worker)
            if instance.ejection.times:
                instance.ejection = instance.ejection.sent(now, self.ejection)
            self._leave_trace(routed, query, eligible.unknown, now)
        return routed

    def _apart(self, request: RouteRequest, target: Target, chosen: Candidate, now: float) -> Candidate:
        """The choice for a request with a namespace of its own, with what its answer may claim; note where it goes."""
        if (lora := request.lora or target.lora) is not None:
            self.look_ups.soon([one for one in target.instances if not lists_adapter(one, lora)], now)
        instance = self.fleet.get(chosen.worker.instance)
        if instance is not None and not request.dry_run and instance.sends_unmarked:
            tracked = instance.workers[chosen.worker.dp_rank]
            tracked.mixes_namespaces, tracked.mixed_at = True, now
            if chosen.trust is Trust.EXACT:
                return chosen._replace(trust=Trust.PARTIAL)
        return self.told(request, target, [chosen])[0]

    def finished(self, request_id: str, report: FinishedReport) -> None:
        """The engine's usage for a request: load goes down, delivered tokens are compared. Raises Problem 404."""
        now = time.monotonic()
        if not self.router.finished(request_id, now):
            raise Problem(404, "the request is unknown or expired", field="request_id")
        sent = self.router.take_note(request_id)
        instance = self.fleet.get(sent.instance) if isinstance(sent, Sent) else None
        if not isinstance(sent, Sent) or instance is None:
            return
        self._judge(instance, sent, report.error, now)
        if report.cached_tokens is None:
            return
        prompt = report.prompt_tokens if report.prompt_tokens is not None else sent.prompt
        if prompt is not None:  # else nobody knows of how many
            self.metrics.delivered(sent.model, sent.instance, prompt, report.cached_tokens, sent.reusable)

    def _judge(self, instance: Instance, sent: Sent, error: ErrorReport | None, now: float) -> None:
        """A success ends a row of failures; a failure counts if it is the engine's, of the state that it is in now."""
        if error is None:
            if instance.ejection.failures:
                instance.ejection = instance.ejection.succeeded(now)
            return
        reason = blame(error.kind, error.status)
        if reason is None:
            return
        if reason in ("connect", "timeout"):
            self.suspect(instance.id, f"a gateway reports: {reason}")
        if sent.at < instance.contact.since:
            return
        before, instance.ejection = instance.ejection, instance.ejection.failed(now, reason, self.ejection)
        if instance.ejection.times > before.times:
            self.metrics.ejected(instance.id, reason)
            pause_s = instance.ejection.until - now
            _log.warning(
                "engine ejected", instance=instance.id, reason=instance.ejection.why, seconds=round(pause_s, 1)
            )

    def _leave_trace(self, routed: Routed, query: RouteQuery, unknown: int, now: float) -> None:
        chosen = routed.chosen
        promised = None if query.prompt_tokens is None else chosen.reusable
        sent = Sent(routed.target.model, chosen.worker.instance, query.prompt_tokens, promised, now)
        self.router.record(routed.request_id, routed.decision, query, now, sent)
        counts = None if query.prompt_tokens is None else (query.prompt_tokens, chosen.matched, chosen.reusable)
        self.metrics.routed(routed.target.model, routed.decision.reason, counts)
        if unknown:
            self.metrics.unknown_candidates(unknown)

    def _untokenised(self, request: RouteRequest, target: Target, error: TokeniseError) -> Routed:
        """Routed by load, and counted; refused when the request is strict."""
        if not request.dry_run:
            self.metrics.tokenise_failed(target.model, error.kind)
        held_back = self.repeats.due((target.model, error.kind))
        if held_back is not None:
            _log.warning(
                "text not tokenised, routed by load",
                model=target.model,
                kind=error.kind,
                detail=error.detail,
                held_back=held_back,
            )
        if request.strict:
            raise untokenised(error)
        return self.decide(request, target, None, f"routed by load, the text could not be tokenised: {error.detail}")

    def _by_adapter(
        self, target: Target, named: str | None
    ) -> Mapping[tuple[str, str | None, str | None], set[Worker]]:
        """The workers by base model and by what the adapter's name means to them: the label of its blocks, its path.

        Not those of whose adapter an event told another path than the list: nothing of it is known until the next look.
        """
        groups: dict[tuple[str, str | None, str | None], set[Worker]] = {}
        for instance in target.instances:
            model, lora = instance.settings.model, target.lora_on(instance, named)
            if lora is not None and lora in instance.doubts:
                continue
            path = None if lora is None else instance.adapters.get(lora)
            vllm = instance.settings.engine is EngineKind.VLLM
            label = self.adapters.label(model, lora, path) if vllm and lora is not None else lora
            groups.setdefault((model, label, path), set()).update(one.worker for one in instance.workers.values())
        return groups

    def _may_be_stale(self, request: RouteRequest, target: Target, worker: Worker) -> bool:
        """Whether what a worker holds of the request's adapter may be of weights that it has no more."""
        instance = self.fleet.get(worker.instance)
        lora = None if instance is None else target.lora_on(instance, request.lora)
        if instance is None or lora is None:
            return False
        untold = instance.settings.engine is EngineKind.VLLM and lora not in instance.adapters
        return (
            (untold and instance.reachable is True)
            or instance.adapters_moved
            or instance.facts.adapters_loadable
            or self.index.adapter_doubted(worker, lora)
        )

    def _is_known(self, request: RouteRequest) -> bool:
        """Whether an instance is known to serve what is named, or the model is one that only has no instance now."""
        target = self.fleet.target(request.model, request.lora_path)
        if target is None:
            return self.fleet.waits_for(request.model) is not None
        if (request.lora or target.lora) is None:
            return True
        return any(self._lists(one, target, request.lora) for one in target.instances)

    def _lists(self, instance: Instance, target: Target, named: str | None) -> bool:
        lora = target.lora_on(instance, named)
        return lora is not None and lists_adapter(instance, lora)

    def _could_serve(self, request: RouteRequest) -> list[Instance]:
        """The instances to be looked at for what nobody is known to serve."""
        target = self.fleet.target(request.model, request.lora_path)
        if target is not None:
            return list(target.instances)
        parts = split_name(request.model)
        base = None if parts is None else self.fleet.target(parts[0])
        return list(self.fleet if base is None else base.instances)

    def _unserved(self, name: str) -> Problem:
        model, extra = self.fleet.waits_for(name), {"models": self.fleet.models()}
        if model is None:
            return Problem(404, "no instance serves this model", field="model", extra=extra)
        detail = f"the model {shown(model)} is known and has no instance now"
        headers = {"retry-after": str(WAIT_FOR_MODEL_S)}
        return Problem(503, detail, field="model", extra=extra, headers=headers)


def untokenised(error: TokeniseError) -> Problem:
    """The answer to a request whose text could not be tokenised, where tokens are needed."""
    return Problem(422 if error.kind == "template" else 504, f"the text could not be tokenised: {error.detail}")


def _nobody(request: RouteRequest, target: Target, candidates: list[Candidate]) -> Problem:
    """Why each worker may not be chosen, and which of the request's candidates name no instance of the model."""
    why = [{"instance": one.worker.instance, "dp_rank": one.worker.dp_rank, "why": one.why} for one in candidates]
    unknown = [shown(name) for name in unknown_names(request.candidates or (), target.instances)[:SHOWN_NAMES]]
    detail = "no eligible instance"
    if unknown:
        detail += f"; these candidates name no instance of the model: {', '.join(unknown)}"
    extra = {"instances": why, "unknown_candidates": unknown}
    return Problem(503, detail, extra=extra, headers={"retry-after": "1"})


def _namespace(request: RouteRequest, target: Target) -> str:
    lora = request.lora or target.lora or ""
    return f"{target.model}\0{lora}\0{request.cache_salt or ''}\0{request.extra_key or ''}"
