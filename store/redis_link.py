"""Commands to Redis or a Redis Cluster, many per round trip, each round trip with a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import redis.exceptions as known
from redis.asyncio import Redis, RedisCluster

from store.redis_errors import reason_of, state_error
from store.redis_scripts import SCRIPTS, Script

Argument = str | bytes | int
Command = tuple[Argument, ...]
Answer = Any
"""As the server gives it, nested lists and bytes; or an exception."""

_UNREACHED = {"connection", "timeout", "cluster"}


def script_call(script: Script, keys: Sequence[str], *arguments: Argument) -> Command:
    """The command that runs a script."""
    return ("EVALSHA", script.sha, len(keys), *keys, *arguments)


class RedisLink:
    """Runs commands on a client that it owns. `connections` round trips at a time; others wait, within their limit."""

    def __init__(self, client: Redis | RedisCluster, connections: int, limit_s: float) -> None:
        self._client: Any = client
        self._slots = asyncio.Semaphore(connections)
        self._limit_s = limit_s

    @property
    def is_cluster(self) -> bool:
        """Whether keys lie on several servers."""
        return isinstance(self._client, RedisCluster)

    async def one(self, op: str, command: Command, limit_s: float | None = None) -> Answer:
        """The answer to a command, or StateError."""
        return (await self.all(op, [command], limit_s))[0]

    async def all(self, op: str, commands: Sequence[Command], limit_s: float | None = None) -> list[Answer]:
        """The answers to all commands, or StateError when one of them failed."""
        answers = await self.each(op, commands, limit_s)
        for answer in answers:
            if isinstance(answer, Exception):
                raise state_error(op, answer)
        return answers

    async def each(self, op: str, commands: Sequence[Command], limit_s: float | None = None) -> list[Answer]:
        """The answer or the error of each command, in one round trip where nothing is amiss, or StateError for all."""
        async with self._round_trip(op, limit_s or self._limit_s):
            return await self._answers(commands)

    async def scan(self, op: str, pattern: str, limit_s: float) -> list[bytes]:
        """All keys that match, each once."""
        async with self._round_trip(op, limit_s):
            return list({key async for key in self._client.scan_iter(match=pattern, count=1000)})

    async def memory_settings(self, op: str) -> list[dict[str, Any]]:
        """INFO's memory section, of every server."""
        async with self._round_trip(op, self._limit_s):
            if not self.is_cluster:
                return [await self._client.info("memory")]
            found = await self._client.info("memory", target_nodes=RedisCluster.PRIMARIES)
            return list(found.values()) if all(isinstance(one, dict) for one in found.values()) else [found]

    async def close(self) -> None:
        """Close all connections; gives up on one that does not end in time."""
        with suppress(Exception):  # nothing is left to be done with it
            async with asyncio.timeout(self._limit_s):
                await self._client.aclose()

    @asynccontextmanager
    async def _round_trip(self, op: str, limit_s: float) -> AsyncIterator[None]:
        """Waits for its turn, within the limit; whatever goes wrong is a StateError."""
        try:
            async with asyncio.timeout(limit_s), self._slots:
                yield
        except Exception as error:  # a connection's death raises more than the documented errors
            raise state_error(op, error) from None

    async def _answers(self, commands: Sequence[Command]) -> list[Answer]:
        answers = await self._pipelined(commands)
        if self.is_cluster and any(_unreached(answer) for answer in answers):
            await self._find_again(commands, answers)
        unknown = [place for place, answer in enumerate(answers) if isinstance(answer, known.NoScriptError)]
        if unknown:
            texts = [_with_text(commands[place]) for place in unknown]
            for place, answer in zip(unknown, await self._pipelined(texts), strict=True):
                answers[place] = answer
        return answers

    async def _pipelined(self, commands: Sequence[Command]) -> list[Answer]:
        pipeline = self._client.pipeline() if self.is_cluster else self._client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        return list(await pipeline.execute(raise_on_error=False))

    async def _find_again(self, commands: Sequence[Command], answers: list[Answer]) -> None:
        """Send again what got no answer. A single command asks where slots are now, a pipeline does not."""
        places = [place for place, answer in enumerate(answers) if _unreached(answer)]
        try:
            answers[places[0]] = await self._client.execute_command(*commands[places[0]])
        except known.NoScriptError as error:
            answers[places[0]] = error
        except Exception as error:  # of this command; others may have been answered
            answers[places[0]] = error
            return
        rest = places[1:]
        if rest:
            for place, answer in zip(rest, await self._pipelined([commands[one] for one in rest]), strict=True):
                answers[place] = answer


def _unreached(answer: Answer) -> bool:
    """Errors that say nothing about the command."""
    if not isinstance(answer, Exception):
        return False
    return not isinstance(answer, known.ResponseError) or reason_of(answer) in _UNREACHED


def _with_text(command: Command) -> Command:
    return ("EVAL", SCRIPTS[str(command[1])], *command[2:])
