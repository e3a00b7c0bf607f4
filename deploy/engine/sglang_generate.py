"""SGLang's own `POST /generate`: text or ids, one prompt or several; streams tell the whole text each time."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from deploy.engine.api_error import ApiError
from deploy.engine.bodies import GenerateBody, SamplingParams
from deploy.engine.disconnect import EventStream, while_connected
from deploy.engine.engine import Engine
from deploy.engine.generation import Ending, Finished, Generation, Progress
from deploy.engine.openai_routes import json_answer, prompt_tokens, read_body, run_all, split_prompts, stop_texts
from deploy.engine.sglang_face import matched, namespace, wanted_rank


class GenerateRoute:
    """The handler."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def route(self) -> Route:
        """Where it is."""
        return Route("/generate", self.generate, methods=["POST", "PUT"])

    async def generate(self, request: Request) -> Response:
        """One object, or a list of them when the body has a list of prompts. Errors have a form of their own here."""
        try:
            return await self._generate(request, await read_body(request, GenerateBody))
        except ApiError as error:
            return json_answer({"error": {"message": error.message}}, error.status)

    async def _generate(self, request: Request, body: GenerateBody) -> Response:
        if (body.text is None) == (body.input_ids is None):
            raise ApiError(400, "Either text or input_ids should be provided, and not both.")
        runs = self._runs(request, body)
        many = isinstance(body.text, list) or (body.input_ids is not None and isinstance(body.input_ids[0], list))
        name = body.rid or uuid.uuid4().hex
        if not body.stream:
            ends = await while_connected(request.receive, run_all(runs))
            answers = [_whole(f"{name}-{at}" if many else name, end) for at, end in enumerate(ends)]
            return json_answer(answers if many else answers[0])
        if many:
            raise ApiError(400, "the CPU engine streams one prompt at a time")
        return EventStream(request, _events(name, runs[0]))

    def _runs(self, request: Request, body: GenerateBody) -> list[Generation]:
        prompts = split_prompts(body.input_ids if body.input_ids is not None else body.text or "")
        rank = wanted_rank(request.headers, body.routed_dp_rank, body.data_parallel_rank)
        ending = _ending(body.sampling_params or SamplingParams())
        keys, salts, adapters = (_each(field, prompts) for field in (body.extra_key, body.cache_salt, body.lora_path))
        return [
            Generation(
                self._engine,
                rank,
                prompt_tokens(self._engine, prompt),
                namespace(self._engine.settings, keys[at], salts[at], adapters[at]),
                ending,
            )
            for at, prompt in enumerate(prompts)
        ]


def _ending(params: SamplingParams) -> Ending:
    if params.n != 1:
        raise ApiError(400, "the CPU engine has no n > 1")
    return Ending(
        params.max_new_tokens,
        params.min_new_tokens,
        params.ignore_eos,
        stop_texts(params.stop),
        params.stop_token_ids or (),
        params.no_stop_trim,
    )


def _each(field: str | list[str | None] | None, prompts: Sequence[object]) -> Sequence[str | None]:
    """A field's value for each prompt."""
    if not isinstance(field, list):
        return [field] * len(prompts)
    if len(field) != len(prompts):
        raise ApiError(400, "a list of keys, salts or adapters needs one for each prompt")
    return field


def _whole(name: str, end: Finished) -> dict[str, object]:
    reason: dict[str, object] = {"type": end.reason}
    reason |= {"length": len(end.tokens)} if end.reason == "length" else {"matched": matched(end)}
    return _part(name, end, {"finish_reason": reason, "e2e_latency": end.seconds})


def _part(name: str, progress: Progress | Finished, more: dict[str, object]) -> dict[str, object]:
    cached = progress.cached_tokens
    meta = {
        "id": name,
        "finish_reason": None,
        "prompt_tokens": progress.prompt_tokens,
        "completion_tokens": len(progress.tokens),
        "cached_tokens": cached,
        "cached_tokens_details": {"device": cached, "host": 0} if cached else None,
        "weight_version": "default",
    }
    return {"text": progress.text, "output_ids": progress.tokens, "meta_info": meta | more}


async def _events(name: str, run: Generation) -> AsyncGenerator[bytes, None]:
    try:
        async with aclosing(run.outputs()) as outputs:
            async for output in outputs:
                done = output.finish is not None
                yield msgspec.json.encode(_whole(name, run.result()) if done else _part(name, run.so_far(), {}))
    except ApiError as error:
        yield msgspec.json.encode({"error": {"message": error.message}})
    yield b"[DONE]"
