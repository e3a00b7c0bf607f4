"""vLLM 0.32.0's ways: errors, adapters by model name, cache salts, `/kv_event_sources` and the rest."""

from __future__ import annotations

import re

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from deploy.engine.api_error import ApiError, unknown_model
from deploy.engine.bodies import Body, GenerationBody
from deploy.engine.cache import Namespace
from deploy.engine.engine import Engine
from deploy.engine.events import SEND_LIMIT
from deploy.engine.generation import Finished
from deploy.engine.openai_answer import usage
from deploy.engine.openai_routes import json_answer
from deploy.engine.sleep_routes import sleep_routes
from deploy.engine.vllm_metrics import vllm_metrics

VERSION = "0.32.0+kvroute.cpu"
"""What it behaves like, as a local version so that nobody takes it for the real one."""

_SALT = re.compile(r"[^@/\\\0]{1,128}")


class VllmFace:
    """A `Face`."""

    def __init__(self, engine: Engine) -> None:
        self._settings = engine.settings

    def error(self, error: ApiError) -> dict[str, object]:
        return {"error": error.detail()}

    def check_model(self, body: Body) -> str:
        name = self._settings.model if body.model is None else body.model
        if name != self._settings.model and name not in self._settings.adapters:
            raise unknown_model(name)
        return name

    def namespace(self, body: GenerationBody) -> Namespace:
        if body.cache_salt is not None and not _SALT.fullmatch(body.cache_salt):
            raise ApiError(
                400, "cache_salt must be 1 to 128 characters, none of them @, /, \\ or NUL", param="cache_salt"
            )
        name = body.model or ""
        path = self._settings.adapters.get(name)
        return Namespace(cache_salt=body.cache_salt, lora=None if path is None else (name, path))

    def rank(self, headers: Headers, body: GenerationBody) -> int | None:
        """The header; a value that is no integer is ignored (`_get_data_parallel_rank`)."""
        try:
            return int(headers["x-data-parallel-rank"])
        except (KeyError, ValueError):
            return None

    def choice_end(self, finished: Finished | None) -> dict[str, object]:
        if finished is None:
            return {"finish_reason": None, "stop_reason": None}
        return {"finish_reason": finished.reason, "stop_reason": finished.stop_reason}

    def usage(self, finished: list[Finished]) -> dict[str, object]:
        """Of several prompts the last one's cached tokens, as there."""
        counts = usage(sum(end.prompt_tokens for end in finished), sum(len(end.tokens) for end in finished))
        return counts | {"prompt_tokens_details": {"cached_tokens": finished[-1].cached_tokens}}


def vllm_routes(engine: Engine) -> list[Route]:
    """The routes that only vLLM has."""

    async def health(request: Request) -> Response:
        return Response(status_code=503 if engine.is_dead else 200)

    async def version(request: Request) -> Response:
        return json_answer({"version": VERSION})

    async def sources(request: Request) -> Response:
        return json_answer(event_sources(engine))

    async def reset(request: Request) -> Response:
        return json_answer({"success": engine.clear()})

    async def metrics(request: Request) -> Response:
        return Response(vllm_metrics(engine), media_type="text/plain; version=0.0.4")

    return [
        *sleep_routes(engine),
        Route("/health", health),
        Route("/version", version),
        Route("/kv_event_sources", sources),
        Route("/reset_prefix_cache", reset, methods=["POST"]),
        Route("/metrics", metrics),
    ]


def event_sources(engine: Engine) -> dict[str, object]:
    """`/kv_event_sources`: per rank, `{}` without events."""
    settings = engine.settings
    if settings.events_port is None or settings.replay_port is None:
        return {}
    host = bound_host(settings.host)
    return {
        str(rank.number): {
            "endpoint": f"tcp://{host}:{settings.events_port + rank.number}",
            "replay_endpoint": f"tcp://{host}:{settings.replay_port + rank.number}",
            "buffer_steps": settings.buffer_steps,
            "hwm": SEND_LIMIT,
            "max_queue_size": 100_000,
            "topic": settings.topic,
            "publisher": "zmq",
            "enable_kv_cache_events": True,
        }
        for rank in engine.ranks
    }


def bound_host(host: str) -> str:
    """A host in an endpoint: all addresses are `*`, IPv6 has brackets."""
    if host in ("0.0.0.0", "::"):
        return "*"
    return f"[{host}]" if ":" in host else host
