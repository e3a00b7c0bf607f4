"""Health, readiness, metrics, index sizes, and the gateway's reports on requests."""

from __future__ import annotations

import time

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from app.auth import require_token
from app.body_limit import read_body
from app.instance_body import FinishedBody, read_finished
from app.json_answer import json_answer
from app.metrics import CONTENT_TYPE
from app.openapi import json_body, problems
from app.problems import Problem
from app.service import Service
from app.version import VERSION
from index.native import CORE


def operations_api(service: Service) -> APIRouter:
    """The routes for operators and gateways beside routing itself."""
    api = APIRouter(tags=["operations"])

    @api.get("/", summary="Where things are")
    async def index() -> Response:
        paths = ["/docs", "/openapi.json", "/instances", "/index/stats", "/metrics", "/healthz", "/readyz"]
        return json_answer({"service": "kvroute", "version": VERSION, "see": paths})

    @api.get("/healthz", summary="200 while the process and its tasks live")
    async def healthz() -> Response:
        healthy = service.healthy
        body = {
            "status": "ok" if healthy else "failed",
            "version": VERSION,
            "core": CORE.name,
            "core_reason": CORE.reason,
        }
        return json_answer(body, 200 if healthy else 503)

    @api.get("/readyz", summary="200 once every instance is live or was tried")
    async def readyz() -> Response:
        waiting = service.waiting()
        body = {"ready": not waiting, "waiting_for": waiting, "state_store": service.store()}
        return json_answer(body, 503 if waiting else 200)

    @api.get("/metrics", summary="Prometheus text")
    async def metrics() -> Response:
        return Response(service.around.metrics.exposition(), media_type=CONTENT_TYPE)

    @api.get("/index/stats", summary="Blocks, holders and bytes per pool", tags=["index"])
    async def stats() -> Response:
        pools = list(service.around.index.stats())
        return json_answer(
            {
                "blocks": sum(pool.blocks for pool in pools),
                "holders": sum(pool.holders for pool in pools),
                "bytes": sum(pool.size_bytes for pool in pools),
                "pools": [
                    {
                        "model": pool.model,
                        "kind": "block_hash" if pool.engine.value == "vllm" else "radix",
                        "engine": pool.engine.value,
                        "block_size": pool.block_size,
                        "workers": pool.workers,
                        "blocks": pool.blocks,
                        "holders": pool.holders,
                        "bytes": pool.size_bytes,
                    }
                    for pool in pools
                ],
            }
        )

    @api.post("/requests/{request_id}/first_token", status_code=204, summary="Its prefill is done")
    async def first_token(request_id: str, request: Request) -> Response:
        require_token(request, service.settings.auth.token)
        if not service.routing.router.first_token(request_id, time.monotonic()):
            raise Problem(404, "the request is unknown or expired", field="request_id")
        return Response(status_code=204)

    @api.post(
        "/requests/{request_id}/finished",
        status_code=204,
        summary="How a request ended: the engine's usage, or what failed",
        responses=problems(400, 401, 404, 413, 422),
        openapi_extra=json_body(FinishedBody, {"cached_tokens": 992, "prompt_tokens": 1000, "output_tokens": 120}),
    )
    async def finished(request_id: str, request: Request) -> Response:
        require_token(request, service.settings.auth.token)
        limits = service.settings.limits
        report = read_finished(await read_body(request, limits.body_bytes, limits.body_timeout_s))
        service.routing.finished(request_id, report)
        return Response(status_code=204)

    return api
