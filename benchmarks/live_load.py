"""The live benchmark's load: conversations that begin at random times, and one client for all of their turns."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, NamedTuple

import httpx

MODEL: Final = "tiny"
TURNS: Final = 6
TURN_LIMIT_S: Final = 60.0
VOCABULARY: Final = range(300, 8000)


class Turn(NamedTuple):
    """One request as measured. `promised` is the router's reusable_tokens, None where it was not asked."""

    ttft_s: float
    prompt: int
    cached: int
    promised: int | None
    engine: int


class Session(NamedTuple):
    """A conversation: when it begins, what the user says at each turn, how long the answers are, how long he thinks."""

    begins_s: float
    system: list[int]
    said: list[list[int]]
    outputs: list[int]
    pauses_s: list[float]


def sessions(seed: int, seconds: float, per_second: float) -> list[Session]:
    """Conversations with one of three system prompts of 512 tokens; the first turn has 200-1200 tokens, later ones
    50-200, answers 16-48; a mean pause of one second."""
    random = Random(seed)

    def words(length: int) -> list[int]:
        return random.choices(VOCABULARY, k=length)

    systems = [words(512) for _ in range(3)]
    begun, begins_s = [], random.expovariate(per_second)
    while begins_s < seconds:
        said = [words(random.randint(200, 1200)), *(words(random.randint(50, 200)) for _ in range(TURNS - 1))]
        outputs = [random.randint(16, 48) for _ in said]
        pauses_s = [random.expovariate(1.0) for _ in said]
        begun.append(Session(begins_s, random.choice(systems), said, outputs, pauses_s))
        begins_s += random.expovariate(per_second)
    return begun


@dataclass(eq=False)
class Client:
    """Plays sessions. `router` None: the engines in turn."""

    engines: Sequence[str]
    router: str | None
    turns: list[Turn] = field(default_factory=list)
    _sent: int = 0

    async def play(self, begun: Sequence[Session]) -> list[Turn]:
        """All of them, each turn after the answer to the one before. Raises httpx.HTTPError for an engine's error."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        client = httpx.AsyncClient(timeout=TURN_LIMIT_S, limits=limits, trust_env=False)
        async with client as http, asyncio.TaskGroup() as group:
            for session in begun:
                group.create_task(self._session(http, session))
        return self.turns

    async def _session(self, http: httpx.AsyncClient, session: Session) -> None:
        await asyncio.sleep(session.begins_s)
        prompt = list(session.system)
        for said, length, pause_s in zip(session.said, session.outputs, session.pauses_s, strict=True):
            prompt += said
            prompt += await self._turn(http, prompt, length)
            await asyncio.sleep(pause_s)

    async def _turn(self, http: httpx.AsyncClient, prompt: list[int], length: int) -> list[int]:
        began = time.perf_counter()
        route = await self._route(http, prompt, length)
        engine = self._sent % len(self.engines) if route is None else self.engines.index(route["url"])
        self._sent += 1
        report = "" if route is None else f"{self.router}/requests/{route['request_id']}"
        body = {"model": MODEL, "prompt": prompt, "max_tokens": length, "ignore_eos": True, "return_token_ids": True}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        output: list[int] = []
        usage: dict[str, Any] = {}
        ttft_s = 0.0
        async with http.stream("POST", f"{self.engines[engine]}/v1/completions", json=body) as answer:
            answer.raise_for_status()
            async for chunk in _chunks(answer):
                if not output:
                    ttft_s = time.perf_counter() - began
                    if report:
                        await http.post(f"{report}/first_token")
                output += [token for choice in chunk["choices"] for token in choice["token_ids"]]
                usage = chunk.get("usage") or usage
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        if report:
            delivered = {"cached_tokens": cached, "prompt_tokens": len(prompt), "output_tokens": len(output)}
            await http.post(f"{report}/finished", json=delivered)
        promised = None if route is None else route["reusable_tokens"]
        self.turns.append(Turn(ttft_s, len(prompt), cached, promised, engine))
        return output

    async def _route(self, http: httpx.AsyncClient, prompt: list[int], length: int) -> dict[str, Any] | None:
        if self.router is None:
            return None
        asked = {"model": MODEL, "token_ids": prompt, "max_tokens": length}
        answer = await http.post(f"{self.router}/route", json=asked)
        answer.raise_for_status()
        route: dict[str, Any] = answer.json()
        return route


async def _chunks(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.aiter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))
