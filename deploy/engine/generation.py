"""Running a prompt on the engine, for all routes that generate."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from deploy.engine.api_error import ApiError, engine_dead, queue_full
from deploy.engine.cache import Namespace
from deploy.engine.engine import Engine
from deploy.engine.rank import QueueFull, Rank, RankDead
from deploy.engine.request import FinishReason, Output, Request, Sampling
from deploy.engine.text_output import TextOutput


class Ending(NamedTuple):
    """When a generation ends. `max_tokens` None: as far as the context goes."""

    max_tokens: int | None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: Sequence[str] = ()
    stop_tokens: Sequence[int] = ()
    keep_stop: bool = False


class Progress(NamedTuple):
    """A generation until now."""

    prompt_tokens: int
    tokens: list[int]
    text: str
    cached_tokens: int


class Finished(NamedTuple):
    """A generation that has ended."""

    prompt_tokens: int
    tokens: list[int]
    text: str
    cached_tokens: int
    reason: FinishReason
    stop_reason: int | str | None
    seconds: float


class Generation:
    """One prompt on one rank: iterate `outputs` or await `finished`. ApiError when it cannot run."""

    def __init__(self, engine: Engine, rank: int | None, prompt: list[int], space: Namespace, ending: Ending) -> None:
        self._rank = _chosen(engine, rank)
        sampling = Sampling(
            _max_tokens(engine.settings.context, len(prompt), ending.max_tokens),
            ending.min_tokens,
            ending.ignore_eos,
            frozenset(ending.stop_tokens),
        )
        text = TextOutput(engine.tokenizer, ending.stop, keep_stop=ending.keep_stop)
        self.request = Request(prompt, sampling, text, space, time.monotonic())
        self._text = ""

    async def outputs(self) -> AsyncGenerator[Output, None]:
        """What each sampled token brings. Ending the iteration early aborts the request."""
        try:
            async with aclosing(self._rank.generate(self.request)) as outputs:
                async for output in outputs:
                    self._text += output.text
                    yield output
        except QueueFull:
            raise queue_full() from None
        except RankDead:
            raise engine_dead() from None

    async def finished(self) -> Finished:
        """Run it to its end."""
        async with aclosing(self.outputs()) as outputs:
            async for _ in outputs:
                pass
        return self.result()

    def result(self) -> Finished:
        """What has come out, once it has ended."""
        request = self.request
        assert request.finish is not None
        return Finished(*self.so_far(), request.finish, request.stop_reason, time.monotonic() - request.arrived_s)

    def so_far(self) -> Progress:
        """What has come out until now."""
        request = self.request
        return Progress(len(request.prompt), request.output, self._text, request.cached_tokens or 0)


def _chosen(engine: Engine, wanted: int | None) -> Rank:
    if wanted is not None and not 0 <= wanted < len(engine.ranks):
        raise ApiError(400, f"data_parallel_rank {wanted} is out of range [0, {len(engine.ranks)}).")
    return engine.rank(wanted)


def _max_tokens(context: int, prompt: int, wanted: int | None) -> int:
    room = context - prompt
    if room < 1 or (wanted is not None and wanted > room):
        asked = "" if wanted is None else f" and {wanted} tokens for the output"
        raise ApiError(
            400,
            f"This model's maximum context length is {context} tokens. However, your request has {prompt} input "
            f"tokens{asked}. Please reduce the length of the input or the number of output tokens.",
        )
    return room if wanted is None else wanted
