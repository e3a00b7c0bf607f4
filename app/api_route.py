"""`POST /route` and `POST /index/match`: bodies in, decisions and matches out."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from app.auth import require_token
from app.body_limit import read_body
from app.candidates import candidates_for, remark, unknown_names
from app.fleet import Target
from app.json_answer import json_answer
from app.openapi import MatchAnswer, RouteAnswer, problems, route_body
from app.problems import Problem
from app.route_body import RouteRequest, read_route_request
from app.routing import Routed, untokenised
from app.service import Service
from engine.tokenise import TokeniseError
from router.candidate import Candidate, Decision


def route_api(service: Service) -> APIRouter:
    """The routes that take prompts."""
    api = APIRouter(tags=["routing"])

    @api.post(
        "/route",
        summary="The instance that will recompute least",
        response_model=RouteAnswer,
        responses=problems(400, 401, 404, 408, 413, 415, 422, 503, 504),
        openapi_extra=route_body(),
    )
    async def route(request: Request) -> Response:
        began = time.perf_counter()
        try:
            require_token(request, service.settings.auth.token)
            routed = await service.routing.route(await _read(request, service))
        except Problem as problem:
            service.around.metrics.route_failed(problem.status)
            raise
        answer = _answered(routed, service)
        if not routed.request.dry_run:
            service.around.metrics.route_took(time.perf_counter() - began)
        return answer

    @api.post(
        "/index/match",
        summary="What every worker holds of a prompt, without a decision",
        response_model=MatchAnswer,
        responses=problems(400, 401, 404, 408, 413, 415, 422, 504),
        openapi_extra=route_body(),
        tags=["index"],
    )
    async def match(request: Request) -> Response:
        require_token(request, service.settings.auth.token)
        asked = await _read(request, service)
        target = service.routing.target(asked)
        tokens = asked.tokens
        if tokens is None:
            target, tokens = await _tokenised(asked, target, service)
        matches = service.routing.matches(asked, target, tokens)
        candidates = candidates_for(asked, target, matches, time.monotonic())
        body = {
            "model": asked.model,
            "prompt_tokens": len(tokens) >> 2,
            "candidates": [_candidate(one, None, service) for one in candidates],
        }
        return json_answer(body)

    return api


async def _read(request: Request, service: Service) -> RouteRequest:
    limits = service.settings.limits
    body = await read_body(request, limits.body_bytes, limits.body_timeout_s)
    query = request.scope["query_string"]
    return read_route_request(body, request.headers.get("content-type"), query, limits.prompt_tokens)


async def _tokenised(asked: RouteRequest, target: Target, service: Service) -> tuple[Target, bytes]:
    try:
        return await service.routing.tokenised(asked, target)
    except TokeniseError as error:
        raise untokenised(error) from None


def _answered(routed: Routed, service: Service) -> Response:
    chosen = routed.chosen
    instance = service.around.fleet.get(chosen.worker.instance)
    ranks = len(instance.workers) if instance else 1
    steering = {"X-data-parallel-rank": str(chosen.worker.dp_rank)} if ranks > 1 else {}
    body: dict[str, Any] = {
        "request_id": routed.request_id,
        "model": routed.request.model,
        "instance": chosen.worker.instance,
        "dp_rank": chosen.worker.dp_rank,
        "url": chosen.url,
        "headers": steering,
        "prompt_tokens": None if routed.tokens is None else len(routed.tokens) >> 2,
        "matched_tokens": chosen.matched,
        "reusable_tokens": chosen.reusable,
        "reason": routed.decision.reason,
        "trust": chosen.trust.value,
    }
    if routed.detail is not None:
        body["detail"] = routed.detail
    if routed.request.explain:
        body["candidates"] = [_candidate(one, routed.decision, service) for one in routed.candidates]
        body["unknown_candidates"] = unknown_names(routed.request.candidates or (), routed.target.instances)
    return json_answer(body, headers=_facts(routed, chosen))


def _facts(routed: Routed, chosen: Candidate) -> dict[str, str]:
    """The answer as headers, for gateways that cannot read a body. Text beyond ASCII is percent-encoded."""
    return {
        "x-kvroute-instance": _header(chosen.worker.instance),
        "x-kvroute-url": _header(chosen.url),
        "x-kvroute-dp-rank": str(chosen.worker.dp_rank),
        "x-kvroute-matched-tokens": str(chosen.matched),
        "x-kvroute-request-id": routed.request_id,
    }


def _header(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char.isascii() and char.isprintable() and char != "%" else _percent(char) for char in text)


def _percent(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))


def _candidate(candidate: Candidate, decision: Decision | None, service: Service) -> dict[str, Any]:
    worker, load = candidate.worker, candidate.load
    instance = service.around.fleet.get(worker.instance)
    gpu, cpu, disk, other = candidate.by_medium
    media = {"gpu": gpu, "cpu": cpu, "disk": disk}
    if other:
        media["other"] = other
    score = None if decision is None else decision.scores.get(worker)
    return {
        "instance": worker.instance,
        "dp_rank": worker.dp_rank,
        "engine": instance.settings.engine.value if instance else None,
        "url": candidate.url,
        "matched_tokens": candidate.matched,
        "reusable_tokens": candidate.reusable,
        "by_medium": media,
        "trust": candidate.trust.value,
        "load": {
            "running": load.running,
            "waiting": load.waiting,
            "kv_usage": load.kv_usage,
            "inflight_prefill_tokens": service.routing.router.inflight_prefill_tokens(worker),
        },
        "score": None if score is None else round(score, 4),
        "eligible": candidate.why is None,
        "why": candidate.why or (remark(instance, worker.dp_rank) if instance else None),
    }
