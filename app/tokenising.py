"""Text to tokens by the engines themselves: one live instance of the model, and one more when it fails."""

from __future__ import annotations

import asyncio
import time
from array import array

from app.candidates import named
from app.contact import Condition
from app.fleet import Target
from app.instance import Instance
from app.route_request import RouteRequest
from app.serving_names import name_for, why_not_served
from app.settings import LimitSettings
from engine.http_client import HttpClient
from engine.tokenise import ChatText, CompletionText, TokeniseError, tokenise

ATTEMPTS = 3
HEDGE_S = 0.25
HEDGE_S_PER_CHARACTER = 1e-6
"""An engine that has not answered after so long is not waited for alone: another is asked beside it."""
SLOW_S = 2.0
"""One that was not waited for is asked last for so long; whether it answers at all is known by then."""


async def tokens_of(request: RouteRequest, target: Target, client: HttpClient, limits: LimitSettings) -> bytes:
    """The request's text as little-endian u32 ids, within `route_timeout_s`. Raises TokeniseError."""
    text = _text(request)
    try:
        async with asyncio.timeout(limits.route_timeout_s):
            return await _first(_askable(request, target)[:ATTEMPTS], request, target, client, limits, text)
    except TimeoutError:
        raise TokeniseError("timeout", f"no engine tokenised the text within {limits.route_timeout_s} s") from None


async def _first(  # noqa: PLR0917
    instances: list[Instance],
    request: RouteRequest,
    target: Target,
    client: HttpClient,
    limits: LimitSettings,
    text: CompletionText | ChatText,
) -> bytes:
    """The first answer of those asked: one, and the next as soon as that fails or takes long."""
    last = TokeniseError("engine", "no instance of the model answers")
    waiting: dict[asyncio.Task[list[int]], Instance] = {}
    hedge_s = HEDGE_S + HEDGE_S_PER_CHARACTER * _length(text)
    left = list(reversed(instances))
    try:
        while left or waiting:
            if left:
                instance = left.pop()
                name = name_for(instance, target.asked, request.lora)
                call = tokenise(client, instance.address, name, text, limits.tokenise_timeout_s)
                waiting[asyncio.create_task(call)] = instance
            done, _ = await asyncio.wait(
                waiting, timeout=hedge_s if left else None, return_when=asyncio.FIRST_COMPLETED
            )
            for slow in () if done else waiting.values():
                slow.slow_until = time.monotonic() + SLOW_S
            for task in done:
                del waiting[task]
                error = task.exception()
                if error is None:
                    return array("I", task.result()).tobytes()
                if not isinstance(error, TokeniseError):
                    raise error
                last = error
                if last.kind == "template":
                    raise last
        raise last
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def _length(text: CompletionText | ChatText) -> int:
    """About how many characters are to be tokenised."""
    if isinstance(text, CompletionText):
        return len(text.prompt)
    return sum(len(str(message.get("content"))) for message in text.messages)


def _text(request: RouteRequest) -> CompletionText | ChatText:
    if request.prompt is not None:
        return CompletionText(request.prompt)
    assert request.messages is not None
    return ChatText(request.messages, request.tools, request.chat_template_kwargs, request.add_generation_prompt)


def _askable(request: RouteRequest, target: Target) -> list[Instance]:
    """Instances that may answer, the most promising first; in turn, so that no engine gets all the texts."""
    now, lora, peers = time.monotonic(), request.lora or target.lora, target.instances
    failed = named(request.exclude, target.instances)
    serving = [one for one in peers if why_not_served(one, target.asked, request.lora, peers) is None]
    alive = [one for one in serving if one.contact.condition not in (Condition.DOWN, Condition.STARTING)]
    turn = int(now * 1000)
    rotated = [alive[(index + turn) % len(alive)] for index in range(len(alive))]

    def doubts(one: Instance) -> tuple[bool, bool, bool, bool]:
        unlike = lora is not None and lora not in one.adapters
        return not one.contact.answers, now < one.slow_until, one.id in failed, unlike

    return sorted(rotated, key=doubts)
