"""`/v1/models` for both faces: the base model and its adapters."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from deploy.engine.engine import Engine
from deploy.engine.openai_answer import Fields
from deploy.engine.openai_routes import json_answer


def models_route(engine: Engine, owner: str) -> Route:
    """The cards: `root` of an adapter is its path."""
    settings = engine.settings

    async def models(request: Request) -> Response:
        base: Fields = {"id": settings.model, "root": settings.model, "parent": None, "max_model_len": settings.context}
        adapters: list[Fields] = [
            {"id": name, "root": path, "parent": settings.model, "max_model_len": None}
            for name, path in settings.adapters.items()
        ]
        same: Fields = {"object": "model", "created": int(engine.started_at), "owned_by": owner}
        return json_answer({"object": "list", "data": [card | same for card in [base, *adapters]]})

    return Route("/v1/models", models)
