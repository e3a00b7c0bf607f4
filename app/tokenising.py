"""Text to tokens by the engines themselves: one live instance of the model, and one more when it fails."""

from __future__ import annotations

import asyncio
import time
from array import array

from app.candidates import named
from app.fleet import Target
from app.instance import Instance, WorkerState
from app.route_request import RouteRequest
from app.settings import LimitSettings
from engine.http_client import HttpClient
from engine.tokenise import ChatText, CompletionText, TokeniseError, tokenise

ATTEMPTS = 2


async def tokens_of(request: RouteRequest, target: Target, client: HttpClient, limits: LimitSettings) -> bytes:
    """The request's text as little-endian u32 ids, within `route_timeout_s`. Raises TokeniseError."""
    text = _text(request)
    last = TokeniseError("engine", "no instance of the model answers")
    try:
        async with asyncio.timeout(limits.route_timeout_s):
            for instance in _askable(request, target)[:ATTEMPTS]:
                name = target.lora or request.lora or instance.settings.model
                try:
                    ids = await tokenise(client, instance.address, name, text, limits.tokenise_timeout_s)
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


def _askable(request: RouteRequest, target: Target) -> list[Instance]:
    """Instances that are not gone, the most promising first; in turn, so that no engine gets all the texts."""
    now, lora = time.monotonic(), request.lora or target.lora
    failed = named(request.exclude, target.instances)
    alive = [one for one in target.instances if one.state(now) is not WorkerState.GONE]
    turn = int(now * 1000)
    rotated = [alive[(index + turn) % len(alive)] for index in range(len(alive))]

    def doubts(one: Instance) -> tuple[bool, bool, bool]:
        return not one.reachable, one.id in failed, lora is not None and lora not in one.adapters

    return sorted(rotated, key=doubts)
