"""vLLM's sleep mode: `/sleep`, `/wake_up`, `/is_sleeping` (VLLM_SERVER_DEV_MODE there, always on here)."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from deploy.engine.api_error import ApiError
from deploy.engine.engine import Engine
from deploy.engine.openai_routes import json_answer

LEVELS = ("0", "1", "2")


def sleep_routes(engine: Engine) -> list[Route]:
    """Level 0 pauses; 1 and 2 drop the cache too, with a clear that is announced after waking up, as there."""

    async def sleep(request: Request) -> Response:
        level = request.query_params.get("level", "1")
        if level not in LEVELS:
            raise ApiError(400, f"level must be one of {', '.join(LEVELS)}, not {level!r}", param="level")
        await engine.sleep(int(level))
        return json_answer({"status": "sleeping", "level": int(level)})

    async def wake_up(request: Request) -> Response:
        engine.wake_up()
        return json_answer({"status": "awake", "tags": None})

    async def is_sleeping(request: Request) -> Response:
        return json_answer({"is_sleeping": engine.sleep_level is not None})

    return [
        Route("/sleep", sleep, methods=["POST"]),
        Route("/wake_up", wake_up, methods=["POST"]),
        Route("/is_sleeping", is_sleeping),
    ]
