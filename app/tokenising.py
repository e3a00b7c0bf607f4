"""Text to tokens by the engines themselves: one live instance of the model, and one more when it fails."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Iterable

import httpx

from app.fleet import Instance, Target, WorkerState
from app.route_body import RouteRequest
from app.settings import LimitSettings
from engine.tokenise import ChatText, CompletionText, TokeniseError, tokenise

ATTEMPTS = 2


async def tokens_of(request: RouteRequest, target: Target, client: httpx.AsyncClient, limits: LimitSettings) -> bytes:
    """The request's text as little-endian u32 ids, within `route_timeout_s`. Raises TokeniseError."""
    text = _text(request)
    last = TokeniseError("engine", "no instance of the model answers")
    try:
        async with asyncio.timeout(limits.route_timeout_s):
            for instance in _askable(target.instances)[:ATTEMPTS]:
                own = instance.settings
                name = target.lora or request.lora or own.model
                try:
                    ids = await tokenise(client, own.engine, own.url, name, text, limits.tokenise_timeout_s)
                    return array("I", ids).tobytes()
                except TokeniseError as error:
                    last = error
                    if error.kind == "template":
                        break
    except TimeoutError:
        last = TokeniseError("timeout", f"no engine tokenised the text within {limits.route_timeout_s} s")
    raise last


def _text(request: RouteRequest) -> CompletionText | ChatText:
    if request.prompt is not None:
        return CompletionText(request.prompt)
    assert request.messages is not None
    return ChatText(request.messages, request.tools, request.chat_template_kwargs, request.add_generation_prompt)


def _askable(instances: Iterable[Instance]) -> list[Instance]:
    """Instances that are not gone, those that answered last first; in turn, so that no engine gets all the texts."""
    now = time.monotonic()
    alive = [one for one in instances if one.state(now) is not WorkerState.GONE]
    turn = int(now * 1000)
    rotated = [alive[(index + turn) % len(alive)] for index in range(len(alive))]
    return sorted(rotated, key=lambda one: not one.reachable)
