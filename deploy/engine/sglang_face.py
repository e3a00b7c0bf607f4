"""SGLang 0.5.22's ways: errors, namespaces, `/server_info`, `/v1/loads`, `/flush_cache` and the rest."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from deploy.engine.api_error import ApiError
from deploy.engine.bodies import Body, GenerationBody
from deploy.engine.byte_pairs import END
from deploy.engine.cache import Namespace
from deploy.engine.engine import Engine
from deploy.engine.generation import Finished
from deploy.engine.openai_answer import usage
from deploy.engine.openai_routes import json_answer
from deploy.engine.rank import Rank
from deploy.engine.settings import EngineSettings
from deploy.engine.sglang_metrics import sglang_metrics
from deploy.engine.vllm_face import bound_host
from index.page_hash import lora_id

VERSION = "0.5.22+kvroute.cpu"
_FLUSH_POLL_S = 0.02


class SglangFace:
    """A `Face`."""

    def __init__(self, engine: Engine) -> None:
        self._settings = engine.settings

    def error(self, error: ApiError) -> dict[str, object]:
        return {"object": "error", **error.detail()}

    def check_model(self, body: Body) -> str:
        """Any name will do, as there."""
        return self._settings.model if body.model is None else body.model

    def namespace(self, body: GenerationBody) -> Namespace:
        """The adapter is `lora_path`, or stands after the model's name: `model:adapter`."""
        adapter = body.lora_path or (body.model or "").partition(":")[2] or None
        if adapter is None and body.model in self._settings.adapters:
            adapter = body.model
        return namespace(self._settings, body.extra_key, body.cache_salt, adapter)

    def rank(self, headers: Headers, body: GenerationBody) -> int | None:
        """The header, else the body."""
        return wanted_rank(headers, body.routed_dp_rank, body.data_parallel_rank)

    def choice_end(self, finished: Finished | None) -> dict[str, object]:
        if finished is None:
            return {"finish_reason": None, "matched_stop": None}
        return {"finish_reason": finished.reason, "matched_stop": matched(finished)}

    def usage(self, finished: list[Finished]) -> dict[str, object]:
        counts = usage(sum(end.prompt_tokens for end in finished), sum(len(end.tokens) for end in finished))
        cached = sum(end.cached_tokens for end in finished)
        return counts | {"prompt_tokens_details": {"cached_tokens": cached}, "reasoning_tokens": 0}


def namespace(settings: EngineSettings, extra_key: str | None, salt: str | None, adapter: str | None) -> Namespace:
    """The tree's namespace: an adapter's id goes to the end of the extra key (`Req.__init__`)."""
    if adapter is None:
        return Namespace(cache_salt=salt, extra_key=extra_key)
    path = settings.adapters.get(adapter)
    if path is None:
        raise ApiError(400, f"The LoRA adapter {adapter!r} is not loaded.", param="lora_path")
    return Namespace(cache_salt=salt, extra_key=(extra_key or "") + lora_id(adapter, path))


def wanted_rank(headers: Headers, *fields: int | None) -> int | None:
    """The rank that the header `X-Data-Parallel-Rank` asks for, else the first field that does."""
    header = headers.get("x-data-parallel-rank")
    if header is not None:
        try:
            return int(header)
        except ValueError:
            raise ApiError(400, f"X-Data-Parallel-Rank must be an integer, not {header!r}") from None
    return next((field for field in fields if field is not None), None)


def matched(finished: Finished) -> int | str | None:
    """What a generation stopped at: here the end token counts too."""
    return END if finished.reason == "stop" and finished.stop_reason is None else finished.stop_reason


def sglang_routes(engine: Engine) -> list[Route]:
    """The routes that only SGLang has, but /generate."""

    async def ready(request: Request) -> Response:
        return Response()

    async def health(request: Request) -> Response:
        await _scheduler_answers(engine)
        return Response()

    async def model_info(request: Request) -> Response:
        name = engine.settings.model
        return json_answer({"model_path": name, "tokenizer_path": name, "is_generation": True})

    async def info(request: Request) -> Response:
        await _scheduler_answers(engine)
        return json_answer(server_info(engine))

    async def loads(request: Request) -> Response:
        now = datetime.now(UTC).isoformat()
        return json_answer({"timestamp": now, "version": VERSION, "loads": [_load(rank) for rank in engine.ranks]})

    async def metrics(request: Request) -> Response:
        return Response(sglang_metrics(engine), media_type="text/plain; version=0.0.4")

    async def flush(request: Request) -> Response:
        return await _flush(engine, request.query_params.get("timeout", "0"))

    return [
        Route("/ready", ready),
        *(Route(path, health) for path in ("/health", "/health_generate")),
        *(Route(path, model_info) for path in ("/model_info", "/get_model_info")),
        *(Route(path, info) for path in ("/server_info", "/get_server_info")),
        Route("/v1/loads", loads),
        Route("/metrics", metrics),
        Route("/flush_cache", flush, methods=["GET", "POST"]),
    ]


async def _scheduler_answers(engine: Engine) -> None:
    """What the API server waits for; a dead scheduler says nothing."""
    if engine.is_dead:
        await asyncio.Event().wait()


def server_info(engine: Engine) -> dict[str, object]:
    """What a router needs of `/server_info`; `startup_time` differs in every process."""
    settings = engine.settings
    config: dict[str, object] | None = None
    publisher: dict[str, object] | None = None
    if settings.events_port is not None and settings.replay_port is not None:
        host = bound_host(settings.host)
        config = {"publisher": "zmq", "endpoint": f"tcp://{host}:{settings.events_port}", "topic": settings.topic}
        config |= {"replay_endpoint": f"tcp://{host}:{settings.replay_port}", "buffer_steps": settings.buffer_steps}
        config |= {"format": "dynamo"} if settings.dynamo else {}
        publisher = {
            "publisher": "zmq",
            "endpoint_host": host,
            "endpoint_port_base": settings.events_port,
            "topic": settings.topic,
            "block_size": settings.block_size,
            "dp_size": settings.dp_size,
            "replay_endpoint_port_base": settings.replay_port,
        }
    return {
        "served_model_name": settings.model,
        "page_size": settings.block_size,
        "dp_size": settings.dp_size,
        "context_length": settings.context,
        "max_total_num_tokens": settings.cache_tokens,
        "max_running_requests": settings.max_running,
        "enable_lora": bool(settings.adapters) or None,
        "kv_events_config": None if config is None else json.dumps(config),
        "kv_events": publisher,
        "startup_time": {"scheduler_e2e": engine.startup_s, "tokenizer_e2e": engine.startup_s},
        "internal_states": [{} for _ in engine.ranks],
        "version": VERSION,
    }


def _load(rank: Rank) -> dict[str, object]:
    stats, counts = rank.cache.stats(), rank.scheduler.counts
    return {
        "dp_rank": rank.number,
        "num_running_reqs": len(rank.scheduler.running),
        "num_waiting_reqs": len(rank.scheduler.waiting),
        "num_used_tokens": stats.used,
        "max_total_num_tokens": stats.total,
        "token_usage": stats.used / stats.total,
        "cache_hit_rate": counts.hit / counts.queried if counts.queried else 0.0,
    }


async def _flush(engine: Engine, wait: str) -> Response:
    """Waits for the requests to end, at most `wait` seconds (the query's `timeout`)."""
    try:
        left = float(wait)
    except ValueError:
        raise ApiError(400, "timeout must be a number of seconds", param="timeout") from None
    while not (flushed := engine.clear()) and left > 0:
        await asyncio.sleep(_FLUSH_POLL_S)
        left -= _FLUSH_POLL_S
    if flushed:
        return PlainTextResponse("Cache flushed.\n")
    return PlainTextResponse("Flush cache failed: requests are running or waiting.\n", 400)
