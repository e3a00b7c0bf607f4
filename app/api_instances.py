"""`/instances`: the fleet, read and changed while the service runs."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from app.auth import require_token
from app.body_limit import read_body
from app.describe import describe
from app.instance_body import read_instance
from app.instance_settings import InstanceSettings
from app.json_answer import json_answer
from app.openapi import InstanceAnswer, InstancesAnswer, json_body, problems
from app.service import Service

EXAMPLE = {
    "id": "vllm-0",
    "engine": "vllm",
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "url": "http://vllm-0:8000",
    "events": "tcp://vllm-0:5557",
    "replay": "tcp://vllm-0:5558",
}


def instances_api(service: Service) -> APIRouter:
    """The routes of the fleet. Ids may hold any text, slashes too (percent-encoded in the path)."""
    api = APIRouter(tags=["instances"])

    @api.get("/instances", summary="All instances", response_model=InstancesAnswer)
    async def instances() -> Response:
        return json_answer({"instances": [describe(one, service.around.index) for one in service.around.fleet]})

    @api.post(
        "/instances",
        status_code=201,
        summary="Add an instance",
        response_model=InstanceAnswer,
        responses=problems(400, 401, 409, 413, 422),
        openapi_extra=json_body(InstanceSettings, EXAMPLE),
    )
    async def add(request: Request) -> Response:
        require_token(request, service.settings.auth.token)
        limits = service.settings.limits
        settings = read_instance(await read_body(request, limits.body_bytes, limits.body_timeout_s))
        instance, created = await service.add(settings)
        return json_answer(describe(instance, service.around.index), 201 if created else 200)

    @api.post("/instances/{instance_id:path}/drain", status_code=204, summary="No new requests; the index is kept")
    async def drain(instance_id: str, request: Request) -> Response:
        require_token(request, service.settings.auth.token)
        await service.drain(instance_id, True)
        return Response(status_code=204)

    @api.post("/instances/{instance_id:path}/undrain", status_code=204, summary="New requests again")
    async def undrain(instance_id: str, request: Request) -> Response:
        require_token(request, service.settings.auth.token)
        await service.drain(instance_id, False)
        return Response(status_code=204)

    @api.get(
        "/instances/{instance_id:path}", summary="One instance", response_model=InstanceAnswer, responses=problems(404)
    )
    async def instance(instance_id: str) -> Response:
        return json_answer(describe(service.instance(instance_id), service.around.index))

    @api.delete("/instances/{instance_id:path}", status_code=204, summary="Remove an instance and its blocks")
    async def remove(instance_id: str, request: Request) -> Response:
        require_token(request, service.settings.auth.token)
        await service.remove(instance_id)
        return Response(status_code=204)

    return api
