"""A real HTTP server that answers like vLLM or SGLang, for tests: every answer can be set, spoilt or delayed.

Events are not its business (see `tests/support/publisher.py`); it only says where they would be.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, Self

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from index.worker import EngineKind

_START_TIMEOUT_S = 10.0


class Reply(NamedTuple):
    """One HTTP answer."""

    body: str | bytes
    status: int = 200
    content_type: str = "application/json"
    delay_s: float = 0.0
    headers: dict[str, str] | None = None


HTML = Reply("<html><body>502 Bad Gateway</body></html>", 502, "text/html")


class RankLoad(NamedTuple):
    """What one rank reports. None: the series or field is left out."""

    running: float | None = 0
    waiting: float | None = 0
    kv_usage: float | None = 0.0


@dataclass
class FakeEngine:
    """`with FakeEngine(kind) as engine`: serves on `engine.url` until the block ends; fields may change meanwhile.

    `events` and `replay` are endpoints of rank 0 as on the engine's command line; None means off. `replies` overrides
    whole answers by path, `calls` counts requests by path, `bodies` keeps what was posted. Its tokenizer gives BOS (1),
    then 3 + byte for every byte of the text; a chat has every message as `<role>content`, then `<assistant>`.

    With an `api_key` what the engine guards (vLLM: /v1, SGLang: all but /health and /metrics; and all of `guarded`) is
    401 without it; `keys` are the authorization headers that came. `own_ranks` are its own numbers of its ranks.
    """

    kind: EngineKind
    version: str | None = None
    model: str = "m"
    adapters: dict[str, str] = field(default_factory=dict)
    root: str | None = None
    aliases: tuple[str, ...] = ()
    events: str | None = None
    replay: str | None = None
    topic: str = ""
    dp_size: int = 1
    block_size: int = 16
    prefix_match_unit: int | None = None
    hash_algorithm: str | None = None
    dynamo: bool = False
    loads: dict[int, RankLoad] = field(default_factory=lambda: {0: RankLoad()})
    asleep: bool = False
    started_at: float = 1_750_000_000.25
    replies: dict[str, Reply] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    bodies: dict[str, list[bytes]] = field(default_factory=dict)
    host: str = "127.0.0.1"
    api_key: str | None = None
    guarded: tuple[str, ...] = ()
    keys: set[str | None] = field(default_factory=set)
    own_ranks: tuple[int, ...] | None = None

    def __enter__(self) -> Self:
        self._socket = socket.create_server((self.host, 0))
        app = Starlette(routes=[Route("/{path:path}", self._answer, methods=["GET", "POST"])])
        config = uvicorn.Config(app, log_level="error", lifespan="off", ws="none", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join(_START_TIMEOUT_S)
        self._socket.close()
        assert not self._thread.is_alive()

    @property
    def port(self) -> int:
        """The port it listens on."""
        port = self._socket.getsockname()[1]
        assert isinstance(port, int)
        return port

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://{self.host}:{self.port}"

    def restart(self) -> None:
        """Pretend to be a new process: another fingerprint."""
        self.started_at += 60

    def spoil(self, reply: Reply, *paths: str) -> None:
        """Answer these paths (all when none is given) with `reply`."""
        for path in paths or ("*",):
            self.replies[path] = reply

    def mend(self) -> None:
        """Answer by the fields again."""
        self.replies.clear()

    def _serve(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._socket]))

    async def _answer(self, request: Request) -> Response:
        path = request.url.path
        self.calls[path] += 1
        body = await request.body()
        if request.method == "POST":
            self.bodies.setdefault(path, []).append(body)
        key = request.headers.get("authorization")
        self.keys.add(key)
        if self._guards(path) and key != f"Bearer {self.api_key}":
            return Response('{"error": "Unauthorized"}', 401, media_type="application/json")
        reply = self.replies.get(path) or self.replies.get("*") or self._reply(request.method, path, body)
        await asyncio.sleep(reply.delay_s)
        return Response(reply.body, reply.status, reply.headers, reply.content_type)

    def _guards(self, path: str) -> bool:
        if self.api_key is None:
            return False
        own = path.startswith("/v1") if self.kind is EngineKind.VLLM else path not in ("/health", "/metrics")
        return own or path in self.guarded

    def _reply(self, method: str, path: str, body: bytes) -> Reply:
        if (method, path) == ("POST", "/tokenize"):
            return self._tokenize(json.loads(body))
        if (method, path) == ("GET", "/v1/models"):
            return _json({"object": "list", "data": self._cards()})
        if self.kind is EngineKind.VLLM:
            return self._vllm(path)
        return self._sglang(path)

    def _vllm(self, path: str) -> Reply:
        match path:
            case "/version":
                return _json({"version": self.version or "0.32.0"})
            case "/kv_event_sources":
                return _json(self._sources())
            case "/metrics":
                return Reply(self._vllm_metrics(), content_type="text/plain; version=0.0.4")
        return _json({"detail": "Not Found"}, 404)

    def _sglang(self, path: str) -> Reply:
        match path:
            case "/server_info":
                return _json(self._server_info())
            case "/v1/loads":
                return _json({"loads": [self._sglang_load(rank) for rank in self.loads]})
            case "/metrics":
                return Reply(self._sglang_metrics(), content_type="text/plain; version=0.0.4")
        return _json({"detail": "Not Found"}, 404)

    def _cards(self) -> list[dict[str, object]]:
        cards: list[dict[str, object]] = [
            {"id": name, "root": self.root or f"/models/{self.model}", "parent": None, "max_model_len": 8192}
            for name in (self.model, *self.aliases)
        ]
        cards += [
            {"id": name, "root": path, "parent": self.model, "max_model_len": None}
            for name, path in self.adapters.items()
        ]
        return cards

    def _sources(self) -> dict[str, object]:
        if self.events is None:
            return {}
        return {
            str(rank): {
                "endpoint": _at_rank(self.events, rank),
                "replay_endpoint": _at_rank(self.replay, rank) if self.replay else None,
                "buffer_steps": 10_000,
                "hwm": 100_000,
                "max_queue_size": 100_000,
                "topic": self.topic,
                "publisher": "zmq",
                "enable_kv_cache_events": True,
            }
            for rank in self.own_ranks or range(self.dp_size)
        }

    def _server_info(self) -> dict[str, object]:
        config = {"publisher": "zmq", "endpoint": self.events, "topic": self.topic} | (
            {"format": "dynamo"} if self.dynamo else {}
        )
        return {
            "version": self.version or "0.5.22",
            "page_size": self.block_size,
            "dp_size": self.dp_size,
            "enable_lora": bool(self.adapters) or None,
            "kv_events_config": json.dumps(config) if self.events else None,
            "kv_events": self._publisher(),
            "startup_time": {"load_weight": 1.5, "scheduler_e2e": self.started_at / 1e7, "tokenizer_e2e": 2.25},
            "internal_states": [{"memory_usage": {}}],
        }

    def _publisher(self) -> dict[str, object] | None:
        if self.events is None:
            return None
        host, _, port = self.events.removeprefix("tcp://").rpartition(":")
        block: dict[str, object] = {
            "publisher": "zmq",
            "endpoint_host": host,
            "endpoint_port_base": int(port),
            "topic": self.topic,
            "block_size": self.block_size,
            "dp_size": self.dp_size,
        }
        if self.replay is not None:
            block["replay_endpoint_port_base"] = int(self.replay.rpartition(":")[2])
        return block

    def _vllm_metrics(self) -> str:
        engine = f'engine="{{}}",model_name="{self.model}"'
        lines = [
            f"process_start_time_seconds {self.started_at}",
            "# HELP vllm:num_requests_running Running.",
            "garbage {",
        ]
        for rank, load in self.loads.items():
            labels = engine.format(rank)
            lines += _series("vllm:num_requests_running", labels, load.running)
            lines += _series("vllm:num_requests_waiting", labels, load.waiting)
            lines += _series("vllm:num_requests_waiting_by_reason", labels + ',reason="capacity"', 99)
            lines += _series("vllm:kv_cache_usage_perc", labels, load.kv_usage)
            for state, on in (("awake", not self.asleep), ("weights_offloaded", self.asleep), ("discard_all", False)):
                lines += _series("vllm:engine_sleep_state", f'{labels},sleep_state="{state}"', float(on))
            config = f'block_size="{self.block_size}",prefix_match_unit="{self.prefix_match_unit}"'
            config += f',prefix_caching_hash_algo="{self.hash_algorithm}"'
            lines += _series("vllm:cache_config_info", f'{config},engine="{rank}"', 1.0)
        return "\n".join(lines) + "\n"

    def _sglang_load(self, rank: int) -> dict[str, object]:
        load = self.loads[rank]
        fields = {"num_running_reqs": load.running, "num_waiting_reqs": load.waiting, "token_usage": load.kv_usage}
        return {"dp_rank": rank} | {name: value for name, value in fields.items() if value is not None}

    def _sglang_metrics(self) -> str:
        lines = ["# TYPE sglang:num_running_reqs gauge"]
        for rank, load in self.loads.items():
            labels = f'model_name="{self.model}",engine_type="unified",tp_rank="0",pp_rank="0"'
            labels += f',dp_rank="{rank}"' if self.dp_size > 1 else ""
            lines += _series("sglang:num_running_reqs", labels, load.running)
            lines += _series("sglang:num_queue_reqs", labels, load.waiting)
            lines += _series("sglang:token_usage", labels, load.kv_usage)
        return "\n".join(lines) + "\n"

    def _tokenize(self, request: dict[str, object]) -> Reply:
        prompt, messages = request.get("prompt"), request.get("messages")
        if isinstance(prompt, str):
            tokens = self.tokens(prompt, bos=request.get("add_special_tokens") is not False)
        elif isinstance(messages, list):
            tokens = self.chat_tokens(messages, generation=request.get("add_generation_prompt") is not False)
        else:
            return _json({"error": {"message": "prompt or messages", "type": "BadRequestError", "code": 400}}, 400)
        return _json({"tokens": tokens, "count": len(tokens), "max_model_len": 8192})

    def tokens(self, text: str, *, bos: bool = True) -> list[int]:
        """What it tokenises a completion's prompt to."""
        return [1] * bos + [3 + byte for byte in text.encode()]

    def chat_tokens(self, messages: Sequence[object], *, generation: bool = True) -> list[int]:
        """What it tokenises a chat to."""
        turns = [turn for turn in messages if isinstance(turn, dict)]
        text = "".join(f"<{turn.get('role')}>{turn.get('content')}" for turn in turns)
        return self.tokens(text + "<assistant>" * generation)


def _json(value: object, status: int = 200) -> Reply:
    return Reply(json.dumps(value), status)


def _series(name: str, labels: str, value: float | None) -> list[str]:
    return [] if value is None else [f"{name}{{{labels}}} {value}".replace(" nan", " NaN")]


def _at_rank(endpoint: str, rank: int) -> str:
    host, _, port = endpoint.rpartition(":")
    return f"{host}:{int(port) + rank}"
