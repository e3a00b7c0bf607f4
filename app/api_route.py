"""`POST /route` and `POST /index/match`: bodies in, decisions and matches out."""

from __future__ import annotations

import time

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from app.auth import require_token
from app.body_limit import read_body
from app.candidates import candidates_for
from app.fleet import Target
from app.json_answer import json_answer
from app.openapi import MatchAnswer, RouteAnswer, problems, route_body
from app.problems import Problem
from app.route_answer import answer_body, answer_headers, shown_candidate
from app.route_body import read_route_request
from app.route_request import RouteRequest
from app.routing import untokenised
from app.service import Service
from engine.tokenise import TokeniseError


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
        began, around = time.perf_counter(), service.around
        try:
            require_token(request, service.settings.auth.token)
            routed = await service.routing.route(await _read(request, service))
        except Problem as problem:
            around.metrics.route_failed(problem.status)
            raise
        answer = json_answer(answer_body(routed, around.fleet, service.routing.router), headers=answer_headers(routed))
        if not routed.request.dry_run:
            around.metrics.route_took(time.perf_counter() - began)
        return answer

    @api.post(
        "/index/match",
        summary="What every worker holds of a prompt, without a decision",
        response_model=MatchAnswer,
        responses=problems(400, 401, 404, 408, 413, 415, 422, 503, 504),
        openapi_extra=route_body(),
        tags=["index"],
    )
    async def match(request: Request) -> Response:
        require_token(request, service.settings.auth.token)
        asked = await _read(request, service)
        target = await service.routing.found(asked)
        tokens = asked.tokens
        if tokens is None:
            target, tokens = await _tokenised(asked, target, service)
        matches = service.routing.matches(asked, target, tokens)
        candidates = candidates_for(asked, target, matches, time.monotonic())
        candidates, router = service.routing.told(asked, target, candidates), service.routing.router
        body = {
            "model": asked.model,
            "prompt_tokens": len(tokens) >> 2,
            "candidates": [shown_candidate(one, None, service.around.fleet, router) for one in candidates],
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
