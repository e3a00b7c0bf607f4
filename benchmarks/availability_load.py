"""The availability benchmark's clients: conversations, each turn after the answer to the one before, all written down.

No two conversations share a block of tokens, so nothing of a request's prefix is under way while it is: what a router
promises of it, the engine must deliver.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, NamedTuple, Protocol

import aiohttp
import msgspec

from benchmarks.availability_engines import MODEL
from benchmarks.availability_proxy import ID_HEADER

ANSWER_S: Final = 60.0
TURNS: Final = 5
WORDS: Final = [
    "router",
    "engine",
    "prefix",
    "block",
    "cache",
    "token",
    "model",
    "queue",
    "event",
    "stream",
    "batch",
    "replay",
    "rank",
    "adapter",
    "memory",
    "store",
    "load",
    "session",
    "prompt",
    "answer",
    "client",
    "gateway",
    "index",
    "hash",
    "tree",
    "page",
    "salt",
    "trust",
    "order",
    "number",
]
MOST_TOKENS: Final = (16, 24, 32, 160)
"""Of an answer, drawn. The longest takes about a second: an engine that is asked to stop gives its answers two."""


@dataclass
class Asked:
    """A request as its client saw it. Times are time.monotonic(); `error` None: a whole answer."""

    request_id: str
    kind: str
    began_s: float
    ended_s: float = 0.0
    first_s: float | None = None
    instance: str | None = None
    fallback: str | None = None
    promised: int | None = None
    cached: int | None = None
    error: str | None = None


class Said(NamedTuple):
    """An answer's text and usage."""

    text: str
    usage: dict[str, Any] | None


class BadAnswer(Exception):
    """An answer that is none."""


class Sender(Protocol):
    """The way of a request to an engine."""

    async def send(self, http: aiohttp.ClientSession, asked: Asked, path: str, body: dict[str, Any]) -> Said:
        """The answer; `asked` says afterwards who gave it and what was promised. BadAnswer and aiohttp's errors."""


@dataclass(frozen=True)
class Gateway:
    """A `Sender` to the gateway at `url`."""

    url: str

    async def send(self, http: aiohttp.ClientSession, asked: Asked, path: str, body: dict[str, Any]) -> Said:
        async with http.post(f"{self.url}{path}", json=body, headers={ID_HEADER: asked.request_id}) as answer:
            _note_headers(asked, answer.headers.get)
            return await read_answer(answer, asked)


@dataclass(eq=False)
class Load:
    """`clients` that ask for `model` until `stop`."""

    sender: Sender
    clients: int
    seed: int
    model: str = MODEL
    asked: list[Asked] = field(default_factory=list)
    _stopped: bool = False
    _ids: itertools.count[int] = field(default_factory=itertools.count)

    async def run(self) -> None:
        """Until `stop`, and the end of the requests that are under way then."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_S)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http, asyncio.TaskGroup() as group:
            for number in range(self.clients):
                group.create_task(self._client(http, Random(f"{self.seed}/{number}"), number))

    def stop(self) -> None:
        """No further request."""
        self._stopped = True

    async def _client(self, http: aiohttp.ClientSession, random: Random, number: int) -> None:
        for conversation in itertools.count():
            await self._conversation(http, random, f"{number}.{conversation}")
            if self._stopped:
                return

    async def _conversation(self, http: aiohttp.ClientSession, random: Random, name: str) -> None:
        chats = random.random() < 0.5
        history: list[dict[str, str]] = [{"role": "system", "content": f"{name} {_words(random, 120)}"}]
        text = f"{name} {_words(random, 150)}"
        for _ in range(TURNS):
            said = _words(random, random.randint(10, 60))
            history.append({"role": "user", "content": said})
            text += f" {said}"
            body: dict[str, Any] = {"messages": history} if chats else {"prompt": text}
            body |= {"model": self.model, "max_tokens": random.choice(MOST_TOKENS), "ignore_eos": True}
            streams = random.random() < 0.5
            if self._stopped:
                return
            answer = await self._ask(http, "/v1/chat/completions" if chats else "/v1/completions", body, streams)
            if answer is None:
                return
            history.append({"role": "assistant", "content": answer})
            text += answer
            await asyncio.sleep(random.uniform(0.02, 0.1))

    async def _ask(self, http: aiohttp.ClientSession, path: str, body: dict[str, Any], streams: bool) -> str | None:
        """The text of the answer, None for none."""
        asked = Asked(f"{self.model}-{next(self._ids)}", f"{path}{' stream' if streams else ''}", time.monotonic())
        self.asked.append(asked)
        if streams:
            body = body | {"stream": True, "stream_options": {"include_usage": True}}
        try:
            said = await self.sender.send(http, asked, path, body)
            asked.cached = _cached(said.usage)
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError, BadAnswer) as error:
            asked.error = f"{type(error).__name__}: {error}"
            await asyncio.sleep(0.1)
            return None
        finally:
            asked.ended_s = time.monotonic()
        return said.text


def _note_headers(asked: Asked, header: Callable[[str], str | None]) -> None:
    asked.instance = header("x-kvroute-instance") or None
    asked.fallback = header("x-kvroute-fallback") or None
    reusable = header("x-kvroute-reusable-tokens")
    asked.promised = int(reusable) if reusable else None


async def read_answer(answer: aiohttp.ClientResponse, asked: Asked) -> Said:
    """A whole answer or a stream. BadAnswer for any other status than 200, and for an error or an end within it."""
    if answer.status != 200:
        raise BadAnswer(f"status {answer.status}: {(await answer.text())[:200]}")
    return await (_streamed(answer, asked) if answer.content_type == "text/event-stream" else _whole(answer))


async def _whole(answer: aiohttp.ClientResponse) -> Said:
    said = msgspec.json.decode(await answer.read())
    choice = said["choices"][0]
    return Said(choice["message"]["content"] if "message" in choice else choice["text"], said.get("usage"))


async def _streamed(answer: aiohttp.ClientResponse, asked: Asked) -> Said:
    text, usage, last = "", None, b""
    async for line in answer.content:
        if not line.startswith(b"data: "):
            continue
        asked.first_s = asked.first_s or time.monotonic()
        last = line[6:].strip()
        if last == b"[DONE]":
            continue
        chunk = msgspec.json.decode(last)
        if "error" in chunk or chunk.get("object") == "error":
            raise BadAnswer(f"in the stream: {last.decode()[:200]}")
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            text += choice.get("text") or choice.get("delta", {}).get("content") or ""
    if last != b"[DONE]":
        raise BadAnswer("the stream was cut off")
    return Said(text, usage)


def _cached(usage: dict[str, Any] | None) -> int | None:
    return None if usage is None else int(usage["prompt_tokens_details"]["cached_tokens"])


def _words(random: Random, count: int) -> str:
    return " ".join(random.choices(WORDS, k=count))
