"""The HTTP application of an engine: its routes by face, its errors, and the life of its tasks."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from deploy.engine.api_error import ApiError
from deploy.engine.disconnect import ClientGone
from deploy.engine.engine import Engine
from deploy.engine.face import Face
from deploy.engine.model_routes import models_route
from deploy.engine.openai_routes import OpenAIRoutes, json_answer
from deploy.engine.settings import EngineSettings
from deploy.engine.sglang_face import SglangFace, sglang_routes
from deploy.engine.sglang_generate import GenerateRoute
from deploy.engine.tokenize_routes import TokenizeRoutes
from deploy.engine.vllm_face import VllmFace, vllm_routes

_LOG = logging.getLogger(__name__)
_CLIENT_CLOSED = 499


def create_app(settings: EngineSettings) -> Starlette:
    """The application, in the running loop. Binds the ports for events; zmq.ZMQError when one is taken."""
    engine = Engine(settings)
    if settings.face == "vllm":
        face: Face = VllmFace(engine)
        routes = [*vllm_routes(engine), models_route(engine, "vllm")]
    else:
        face = SglangFace(engine)
        routes = [*sglang_routes(engine), models_route(engine, "sglang"), GenerateRoute(engine).route()]
    routes += OpenAIRoutes(engine, face).routes() + TokenizeRoutes(engine, face).routes()

    async def api_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return json_answer(face.error(error), error.status)

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return json_answer({"detail": error.detail}, error.status_code)

    async def client_gone(request: Request, error: Exception) -> Response:
        return Response(status_code=_CLIENT_CLOSED)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        running = asyncio.create_task(engine.run())
        running.add_done_callback(_end_with)
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            engine.close()

    handlers = {ApiError: api_error, HTTPException: http_error, ClientGone: client_gone}
    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)
    app.state.engine = engine
    return app


def _end_with(running: asyncio.Task[None]) -> None:
    """An engine that fails ends its server, which would otherwise go on answering without it."""
    if not running.cancelled() and (error := running.exception()) is not None:
        _LOG.critical("the engine failed", exc_info=error)
        os.kill(os.getpid(), signal.SIGTERM)
