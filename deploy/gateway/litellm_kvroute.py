"""LiteLLM asks kvroute which deployment a request should go to. See docs/gateway.md.

In the proxy's configuration: `litellm_settings: {callbacks: ["litellm_kvroute.kvroute"]}` with this file beside it. In
Python: `litellm.callbacks = [KvrouteRouting(["http://router-0:8900"])]` and a `litellm.Router`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import aiohttp
from litellm.integrations.custom_logger import CustomLogger

_log = logging.getLogger("kvroute.litellm")

SAME_FIELDS = (
    *("tools", "chat_template_kwargs", "add_generation_prompt", "priority", "echo", "logprobs", "prompt_logprobs"),
    *("cache_salt", "extra_key"),
)
OPEN_REQUESTS = 16_384
"""Requests whose end is awaited; of more the oldest are forgotten."""
PAUSE_S = 2.0
"""So long a router that did not answer is asked last."""

MAX_CAUSES = 16
"""So many exceptions behind one are looked at."""
BROKEN = {
    "ConnectError": ("connect", "no connection"),
    "ConnectTimeout": ("connect", "no connection in time"),
    "RemoteProtocolError": ("connect", "the connection was closed"),
    "ReadError": ("connect", "the connection was closed"),
    "WriteError": ("connect", "the connection was closed"),
    "ReadTimeout": ("timeout", "no answer in time"),
    "WriteTimeout": ("timeout", "the request was not taken in time"),
}
"""What exceptions of httpx, by name, say of an engine: the kind and detail of `error`. LiteLLM's own say less."""

Deployment = dict[str, Any]


class Routed(NamedTuple):
    """A router's answer: the engine's `url`, headers for it, and where the request's end is reported."""

    url: str
    headers: dict[str, str]
    router: str
    request_id: str


class Attempt(NamedTuple):
    """What this task last asked for: one request, by LiteLLM's trace id, and the engines it has been sent to."""

    trace: str | None
    tried: tuple[str, ...]
    routed: Routed | None


_attempt: ContextVar[Attempt | None] = ContextVar("kvroute_attempt", default=None)


class KvrouteRouting(CustomLogger):  # type: ignore[misc]  # LiteLLM is not there where types are checked
    """A callback that leaves of a model group's deployments the one that kvroute chose.

    `timeout_s` bounds what asking may cost a request, all `routers` together. When none answers, LiteLLM chooses.
    `fallbacks` counts why.
    """

    def __init__(self, routers: Sequence[str], token: str | None = None, timeout_s: float = 0.3) -> None:
        super().__init__()
        self._routers = [one.rstrip("/") for one in routers]
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._timeout_s = timeout_s
        self._paused: dict[str, float] = {}
        self._open: OrderedDict[str, Routed] = OrderedDict()
        self._client: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.fallbacks: Counter[str] = Counter()

    async def async_filter_deployments(
        self,
        model: str,
        healthy_deployments: list[Deployment],
        messages: list[dict[str, Any]] | None,
        request_kwargs: dict[str, Any] | None = None,
        parent_otel_span: object = None,
    ) -> list[Deployment]:
        """The deployment that kvroute chose, or all of them. LiteLLM calls it before every attempt."""
        fields = request_kwargs or {}
        trace, before = fields.get("litellm_trace_id"), _attempt.get()
        retries = before is not None and before.routed is not None and trace is not None and before.trace == trace
        tried = (*before.tried, before.routed.url) if retries and before and before.routed else ()
        routed = None
        try:
            question = _question(fields, messages, healthy_deployments, tried)
            routed = await self._ask(question) if question else None
        except Exception as error:  # a defect in here must not cost the request
            self._fell_back(type(error).__name__)
        _attempt.set(Attempt(trace, tried, routed))
        chosen = [one for one in healthy_deployments if routed is not None and _url(one) == routed.url]
        return chosen or healthy_deployments

    async def async_pre_call_deployment_hook(self, kwargs: dict[str, Any], call_type: object) -> dict[str, Any]:
        """Adds the headers that steer a request within an engine."""
        attempt, call = _attempt.get(), kwargs.get("litellm_call_id")
        if attempt is None or attempt.routed is None or attempt.trace != kwargs.get("litellm_trace_id"):
            return kwargs
        if isinstance(call, str):
            self._open[call] = attempt.routed
            if len(self._open) > OPEN_REQUESTS:
                self._open.popitem(last=False)
        if attempt.routed.headers:
            kwargs["extra_headers"] = {**(kwargs.get("extra_headers") or {}), **attempt.routed.headers}
        return kwargs

    async def async_log_success_event(
        self, kwargs: dict[str, Any], response_obj: object, start_time: object, end_time: object
    ) -> None:
        """Reports the usage. LiteLLM calls it in the background."""
        await self._finished(kwargs, _report(getattr(response_obj, "usage", None)))

    async def async_log_failure_event(
        self, kwargs: dict[str, Any], response_obj: object, start_time: object, end_time: object
    ) -> None:
        """Reports that it failed, and how."""
        await self._finished(kwargs, {"error": _error(kwargs.get("exception"))})

    async def aclose(self) -> None:
        """Close the connections to the routers."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def _ask(self, question: dict[str, Any]) -> Routed | None:
        now = time.monotonic()
        reason = "unreachable"
        for router in sorted(self._routers, key=lambda one: self._paused.get(one, 0.0) > now):
            limit = aiohttp.ClientTimeout(total=self._timeout_s / len(self._routers))
            try:
                asked = self._http().post(f"{router}/route", json=question, timeout=limit, allow_redirects=False)
                async with asked as answer:
                    if answer.status == 200:
                        return _routed(router, await answer.json(content_type=None))
            except (aiohttp.ClientError, OSError) as error:
                reason = "slow" if isinstance(error, TimeoutError) else "unreachable"
                self._paused[router] = now + PAUSE_S
                continue
            reason = "unknown-model" if answer.status == 404 else f"router-{answer.status}"
            if answer.status < 500:
                break  # every router would say so
        self._fell_back(reason)
        return None

    def _fell_back(self, reason: str) -> None:
        self.fallbacks[reason] += 1
        _log.warning("LiteLLM chooses the deployment: %s", reason)

    async def _finished(self, kwargs: dict[str, Any], report: Mapping[str, Any]) -> None:
        routed = self._open.pop(str(kwargs.get("litellm_call_id")), None)
        if routed is None:
            return
        url = f"{routed.router}/requests/{routed.request_id}/finished"
        try:
            limit = aiohttp.ClientTimeout(total=2.0)
            async with self._http().post(url, json=report, timeout=limit, allow_redirects=False):
                pass
        except (aiohttp.ClientError, OSError) as error:
            _log.info("the end of a request was not reported: %r", error)

    def _http(self) -> aiohttp.ClientSession:
        """One client for each event loop: connections do not outlive theirs.

        aiohttp's: a call that a time limit or a client that leaves cancels while it connects does not keep its place.
        """
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._client = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=256, keepalive_timeout=4.0),
                headers=self._headers,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
            self._loop = loop
        return self._client


def _question(
    fields: Mapping[str, Any], messages: object, deployments: Sequence[Deployment], tried: Sequence[str]
) -> dict[str, Any] | None:
    """The routing request; None where there is nothing to choose by."""
    urls = [url for one in deployments if (url := _url(one))]
    if not urls:
        return None
    given = {**fields, **(fields.get("extra_body") or {})}
    question = {name: given[name] for name in SAME_FIELDS if given.get(name) is not None}
    question |= {"model": _engine_model(deployments[0]), "candidates": urls}
    if tried:
        question["exclude"] = list(tried)
    if given.get("prompt") is not None:  # a text completion: its messages are LiteLLM's own, no engine sees them
        question["prompt"] = _prompt(given["prompt"])
    else:
        question["messages"] = messages
    most = given.get("max_completion_tokens") or given.get("max_tokens")
    if isinstance(most, int) and most >= 0:
        question["max_tokens"] = most
    session = given.get("litellm_session_id")
    if isinstance(session, str):
        question["session_id"] = session
    return question


def _prompt(given: object) -> object:
    """The one prompt that the engine computes: a list of one text, or of one list of tokens, means that one."""
    if isinstance(given, list) and len(given) == 1 and isinstance(given[0], str | list):
        return given[0]
    return given


def _url(deployment: Deployment) -> str:
    """The engine's URL as kvroute knows it: an OpenAI base without its /v1."""
    base = deployment.get("litellm_params", {}).get("api_base") or ""
    return str(base).rstrip("/").removesuffix("/v1")


def _engine_model(deployment: Deployment) -> str:
    """The model's name without the provider in front."""
    name = str(deployment.get("litellm_params", {}).get("model") or "")
    return name.partition("/")[2] or name


def _routed(router: str, answer: Mapping[str, Any]) -> Routed:
    headers = {str(name): str(text) for name, text in answer["headers"].items()}
    return Routed(str(answer["url"]).rstrip("/"), headers, router, str(answer["request_id"]))


def _report(usage: object) -> dict[str, int]:
    """The body of /finished: what the usage says, and nothing that it does not."""
    found = {
        "prompt_tokens": getattr(usage, "prompt_tokens", None),
        "output_tokens": getattr(usage, "completion_tokens", None),
        "cached_tokens": getattr(getattr(usage, "prompt_tokens_details", None), "cached_tokens", None),
    }
    return {name: count for name, count in found.items() if isinstance(count, int) and count >= 0}


def _error(failure: object) -> dict[str, Any] | bool:
    """The `error` of a report: what the exception's causes say. True where they do not tell what the engine did.

    The status is taken only from an answer: LiteLLM gives 500 and 408 to failures that had none.
    """
    if isinstance(failure, asyncio.CancelledError):
        return {"kind": "aborted"}
    for one in _causes(failure):
        name = type(one).__name__
        if name in BROKEN:
            kind, detail = BROKEN[name]
            return {"kind": kind, "detail": detail}
        status = getattr(getattr(one, "response", None), "status_code", None)
        if name == "HTTPStatusError" and isinstance(status, int) and 100 <= status <= 599:
            return {"kind": "status", "status": status}
    return {"kind": "timeout"} if type(failure).__name__ == "Timeout" else True


def _causes(failure: object) -> list[BaseException]:
    """The exception and those behind it, nearest first."""
    found: list[BaseException] = []
    while isinstance(failure, BaseException) and len(found) < MAX_CAUSES:
        found.append(failure)
        failure = failure.__cause__ or failure.__context__
    return found


kvroute = KvrouteRouting(
    os.environ.get("KVROUTE_URLS", "http://router-0:8900,http://router-1:8900").split(","),
    os.environ.get("KVROUTE_AUTH__TOKEN"),
    float(os.environ.get("KVROUTE_TIMEOUT_S", "0.3")),
)
"""For the proxy, which names an object."""
