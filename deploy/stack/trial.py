"""A few requests through the gateway of a running stack, and what must be true of their answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from deploy.counters import total
from deploy.stack.failure import StackFailed

LIMIT_S = 30.0
_WORDS = "Prefixes that an engine holds need not be computed again. " * 20
_TRIES, _PAUSE_S = 20, 0.25


async def tried(url: Callable[[str], str], model: str) -> list[str]:
    """Sentences about what was seen; `url` of a service. StackFailed when an answer is wrong, or after `LIMIT_S`."""
    try:
        async with asyncio.timeout(LIMIT_S), httpx.AsyncClient(timeout=10.0, trust_env=False) as client:
            return [
                await _reuses(client, url("gateway"), model),
                await _streams(client, url("gateway"), model),
                await _stores(client, [url("router-0"), url("router-1")]),
                await _is_scraped(client, url("prometheus")),
            ]
    except TimeoutError:
        raise StackFailed(f"the requests were not answered within {LIMIT_S:g} s") from None
    except httpx.HTTPError as error:
        raise StackFailed(f"a request failed: {error!r}") from None


async def _reuses(client: httpx.AsyncClient, gateway: str, model: str) -> str:
    """The same prompt again and again: it must go where it is cached, once the events of the first have arrived."""
    prompt = f"{time.time_ns()} {_WORDS}"
    for number in range(1, _TRIES + 1):
        body = {"model": model, "prompt": prompt, "max_tokens": 4}
        answer = await client.post(f"{gateway}/v1/completions", json=body)
        usage = _json(answer)["usage"]
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        if 2 * cached > usage["prompt_tokens"] and answer.headers.get("x-kvroute-instance"):
            return f"A prompt sent {number} times: {cached} of its {usage['prompt_tokens']} tokens came from a cache."
        await asyncio.sleep(_PAUSE_S)
    raise StackFailed(f"a prompt sent {_TRIES} times was never routed to where it is cached")


async def _streams(client: httpx.AsyncClient, gateway: str, model: str) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": _WORDS}], "max_tokens": 8, "stream": True}
    async with client.stream("POST", f"{gateway}/v1/chat/completions", json=body) as answer:
        if answer.status_code != 200:
            raise StackFailed(f"a chat: {answer.status_code} {(await answer.aread())[:300]!r}")
        lines = [line async for line in answer.aiter_lines() if line.startswith("data:")]
    if not lines or lines[-1] != "data: [DONE]":
        raise StackFailed(f"a streamed chat did not end: {lines[-1:]}")
    return f"A chat streamed through the gateway: {len(lines) - 1} parts."


async def _stores(client: httpx.AsyncClient, routers: list[str]) -> str:
    """Redis takes what the routers write. A batch counts for the one that wrote it first."""

    async def nobody() -> list[str]:
        pages = [(await client.get(f"{router}/metrics")).text for router in routers]
        return [] if any(total(page, "kvroute_state_writes_total") for page in pages) else routers

    await _until(nobody, "nothing was stored in Redis by")
    return "The routers' state is in Redis."


async def _is_scraped(client: httpx.AsyncClient, prometheus: str) -> str:
    """Every target of the stack's jobs answers Prometheus."""

    async def down() -> list[str]:
        targets = _json(await client.get(f"{prometheus}/api/v1/targets?state=active"))["data"]["activeTargets"]
        jobs = [target for target in targets if target["labels"]["job"] in ("kvroute", "vllm", "sglang")]
        return [target["scrapeUrl"] for target in jobs if target["health"] != "up"] if jobs else ["no targets"]

    await _until(down, "Prometheus does not scrape")
    return "Prometheus scrapes the routers and the engines."


async def _until(faults: Callable[[], Awaitable[list[str]]], otherwise: str) -> None:
    for _ in range(4 * _TRIES):
        if not (left := await faults()):
            return
        await asyncio.sleep(_PAUSE_S)
    raise StackFailed(f"{otherwise}: {', '.join(left)}")


def _json(answer: httpx.Response) -> dict[str, Any]:
    if answer.status_code != 200:
        raise StackFailed(f"{answer.request.url}: {answer.status_code} {answer.text[:300]}")
    body: dict[str, Any] = answer.json()
    return body
