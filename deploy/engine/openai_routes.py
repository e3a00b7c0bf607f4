"""`/v1/completions` and `/v1/chat/completions`, streaming or not, for both faces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NamedTuple, TypeVar

import msgspec
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from deploy.engine.api_error import ApiError, invalid
from deploy.engine.bodies import Body, ChatBody, CompletionBody, GenerationBody
from deploy.engine.byte_pairs import BEGIN
from deploy.engine.chat_template import TemplateError, chat_tokens
from deploy.engine.disconnect import EventStream, while_connected
from deploy.engine.engine import Engine
from deploy.engine.face import Face
from deploy.engine.generation import Ending, Finished, Generation
from deploy.engine.openai_answer import CHAT, COMPLETION, Answer, Fields, Kind, new_answer, role_choice, usage

AnyBody = TypeVar("AnyBody", bound=Body)
DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's default of max_tokens for completions; a chat goes on until the context is full."""


class OpenAIRoutes:
    """The handlers of one server."""

    def __init__(self, engine: Engine, face: Face) -> None:
        self._engine = engine
        self._face = face

    def routes(self) -> list[Route]:
        """Where they are."""
        return [
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
        ]

    async def completions(self, request: Request) -> Response:
        """Several prompts give as many choices, in one answer; a stream takes one prompt."""
        body = await read_body(request, CompletionBody)
        refuse(body, ["echo"] * body.echo + ["logprobs"] * (body.logprobs is not None))
        prompts = [prompt_tokens(self._engine, prompt) for prompt in split_prompts(body.prompt)]
        wanted = DEFAULT_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
        return await self._generate(request, COMPLETION, body, prompts, wanted)

    async def chat(self, request: Request) -> Response:
        """One chat, one answer."""
        body = await read_body(request, ChatBody)
        refuse(body, ["logprobs"] * bool(body.logprobs))
        prompt = rendered(self._engine, body)
        return await self._generate(request, CHAT, body, [prompt], body.max_completion_tokens or body.max_tokens)

    async def _generate(
        self, request: Request, kind: Kind, body: GenerationBody, prompts: list[list[int]], max_tokens: int | None
    ) -> Response:
        face = self._face
        answer = new_answer(kind, face.check_model(body))
        rank, space, ending = face.rank(request.headers, body), face.namespace(body), _ending(body, max_tokens)
        runs = [Generation(self._engine, rank, prompt, space, ending) for prompt in prompts]
        if not body.stream:
            finished = await while_connected(request.receive, run_all(runs))
            return json_answer(self._whole(answer, body, runs, finished))
        if len(runs) != 1:
            raise ApiError(400, "the CPU engine streams one prompt at a time", param="prompt")
        return EventStream(request, self._events(_Stream(answer, runs[0], body)))

    def _whole(self, answer: Answer, body: GenerationBody, runs: list[Generation], ends: list[Finished]) -> Fields:
        choices = []
        for index, (run, end) in enumerate(zip(runs, ends, strict=True)):
            choice = answer.choice(index, end.text, self._face.choice_end(end))
            if body.return_token_ids:
                choice |= {"token_ids": end.tokens, "prompt_token_ids": run.request.prompt}
            choices.append(choice)
        return answer.whole(choices, self._face.usage(ends))

    async def _events(self, stream: _Stream) -> AsyncGenerator[bytes, None]:
        """The events of a stream. An error that comes after the first of them is one of them."""
        options, answer = stream.body.stream_options, stream.answer
        try:
            async with aclosing(stream.run.outputs()) as outputs:
                if answer.kind is CHAT:
                    yield _json(answer.chunk([role_choice()]))
                async for output in outputs:
                    end = None if output.finish is None else stream.run.result()
                    choice = answer.delta(output, self._face.choice_end(end))
                    if stream.body.return_token_ids:
                        choice["token_ids"] = [] if output.token is None else [output.token]
                    yield _json(answer.chunk([choice], stream.usage_so_far()))
            if options is not None and options.include_usage:
                yield _json(answer.chunk([], self._face.usage([stream.run.result()])))
        except ApiError as error:
            yield _json(self._face.error(error))
        yield b"[DONE]"


class _Stream(NamedTuple):
    answer: Answer
    run: Generation
    body: GenerationBody

    def usage_so_far(self) -> Fields | None:
        options, request = self.body.stream_options, self.run.request
        if options is None or not options.continuous_usage_stats:
            return None
        return usage(len(request.prompt), len(request.output))


async def read_body(request: Request, kind: type[AnyBody]) -> AnyBody:
    """The body as the model `kind`; ApiError 400 when it is none."""
    try:
        return kind.model_validate_json(await request.body())
    except ValidationError as error:
        raise invalid(error) from None


def refuse(body: GenerationBody, fields: list[str]) -> None:
    """ApiError for what this engine cannot do."""
    if body.n != 1:
        fields = [*fields, "n > 1"]
    if fields:
        raise ApiError(400, f"the CPU engine has no {', '.join(fields)}", param=fields[0])


def split_prompts(prompt: str | list[int] | list[str] | list[list[int]]) -> list[str | list[int]]:
    """The prompts of a body: one, or a list of them."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise ApiError(400, "the prompt is empty", param="prompt")
    one = [token for token in prompt if isinstance(token, int)]
    return [one] if one else [part for part in prompt if not isinstance(part, int)]


def prompt_tokens(engine: Engine, prompt: str | list[int]) -> list[int]:
    """A text begins with the token for that; ids are taken as they are."""
    return [BEGIN, *engine.tokenizer.encode(prompt)] if isinstance(prompt, str) else prompt


def rendered(engine: Engine, body: ChatBody) -> list[int]:
    """The prompt of a chat."""
    try:
        return chat_tokens(engine.tokenizer, body.messages, body.tools, generation_prompt=body.add_generation_prompt)
    except TemplateError as error:
        raise ApiError(400, str(error), param="messages") from None


async def run_all(runs: list[Generation]) -> list[Finished]:
    """All at once; when one fails or this is cancelled, all are aborted."""
    tasks = [asyncio.ensure_future(run.finished()) for run in runs]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def json_answer(content: object, status: int = 200) -> Response:
    """A JSON response."""
    return Response(_json(content), status, media_type="application/json")


def stop_texts(stop: str | list[str] | None) -> list[str]:
    """`stop` as a list."""
    return [stop] if isinstance(stop, str) else stop or []


def _ending(body: GenerationBody, max_tokens: int | None) -> Ending:
    return Ending(
        max_tokens,
        body.min_tokens,
        body.ignore_eos,
        stop_texts(body.stop),
        body.stop_token_ids or (),
        body.include_stop_str_in_output,
    )


def _json(content: object) -> bytes:
    return msgspec.json.encode(content)
