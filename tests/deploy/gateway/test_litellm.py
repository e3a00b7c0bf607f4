"""The callback for LiteLLM, with the real package: its Router, a real kvroute router and CPU engines."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from tests.deploy.gateway import failing_engines as engines
from tests.deploy.gateway.conftest import Fleet
from tests.deploy.gateway.recording_router import recording_router
from tests.deploy.gateway.stack import HASHES, instance, router, urls
from tests.support.cpu_engine import EngineProcess, cpu_engine
from tests.support.ports import free_port
from tests.support.router_process import RouterProcess
from tests.support.service import wait_until

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # nothing is fetched at import
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of a package that is not ours
    pytest.mark.asyncio(loop_scope="module"),  # its background work stays with the event loop that it began in
    pytest.mark.xdist_group("litellm"),  # one process sets it up once
]
ENGINES = ("vllm-0", "vllm-1", "sglang-0")
LONG = "The lighthouse keeper wrote down the wind, the sea and every ship that passed. " * 6
BOUND_S = 20.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def litellm() -> AsyncIterator[Any]:
    """The package; its connections are closed afterwards."""
    package = pytest.importorskip("litellm", reason="needs LiteLLM: pip install -e '.[gateway]'")
    package.disable_aiohttp_transport = True  # it leaves sessions open at the end
    yield package
    await package.close_litellm_async_clients()
    package.in_memory_llm_clients_cache.flush_cache()
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):  # of connections that it does not close
        gc.collect()


@asynccontextmanager
async def gateway(
    litellm: Any, engines: list[str], routers: list[str], model: str = "tiny", **fields: Any
) -> AsyncIterator[Any]:
    """LiteLLM's Router before these engines, with the callback; `.kvroute` is that."""
    from deploy.gateway.litellm_kvroute import KvrouteRouting

    callback = KvrouteRouting(routers, **fields)
    litellm.callbacks = [callback]
    deployments = [
        {
            "model_name": "m",
            "litellm_params": {"model": f"hosted_vllm/{model}", "api_base": f"{url}/v1", "api_key": "-"},
        }
        for url in engines
    ]
    made = litellm.Router(model_list=deployments, num_retries=2, retry_after=0)
    made.kvroute = callback
    try:
        yield made
    finally:
        litellm.logging_callback_manager._reset_all_callbacks()  # it keeps the first of a class
        await callback.aclose()


async def ask(made: Any, text: str, **fields: Any) -> tuple[Any, str]:
    """A completion, and the engine that it came from."""
    fields = {"max_tokens": 4, **fields}
    answer = await made.acompletion(model="m", messages=[{"role": "user", "content": text}], **fields)
    return answer, answer._hidden_params["api_base"].removesuffix("/v1")


async def until(true: Callable[[], bool], log: object = "") -> None:
    """As wait_until, but LiteLLM's background work goes on."""
    await asyncio.to_thread(wait_until, true, 10.0, lambda: log)


def delivered(shared: Fleet, model: str = "tiny") -> float:
    return shared.router.metric(f'kvroute_delivered_tokens_total{{model="{model}"}}')


@pytest.mark.parametrize("name", ENGINES)
async def test_a_request_goes_to_the_engine_that_holds_its_prefix(litellm: Any, shared: Fleet, name: str) -> None:
    text = f"{name} {LONG}"
    chat = {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 4}
    assert shared.engines[name].http.post("/v1/chat/completions", json=chat).status_code == 200
    shared.settle()
    before = delivered(shared)
    async with gateway(
        litellm, [shared.engines[one].url for one in ENGINES], urls([shared.router]), timeout_s=10
    ) as made:
        answer, engine = await ask(made, text)
        assert engine == shared.engines[name].url
        cached = answer.usage.prompt_tokens_details.cached_tokens
        assert cached > 64
        await until(lambda: delivered(shared) == before + cached)
        assert not made.kvroute.fallbacks


async def test_a_text_completion_and_a_stream_are_routed_and_reported(litellm: Any, shared: Fleet) -> None:
    text = f"once more {LONG}"
    async with gateway(
        litellm, [shared.engines[one].url for one in ENGINES], urls([shared.router]), timeout_s=10
    ) as made:
        first = await made.atext_completion(model="m", prompt=text, max_tokens=4)
        shared.settle()
        by_prefix = 'kvroute_route_requests_total{model="tiny",reason="prefix"}'
        before, found = delivered(shared), shared.router.metric(by_prefix)
        options = {"include_usage": True}
        stream = await made.atext_completion(model="m", prompt=text, max_tokens=4, stream=True, stream_options=options)
        pieces = [piece async for piece in stream]
        assert len(pieces) > 2
        assert first.usage.prompt_tokens > 64
        await until(lambda: delivered(shared) >= before + 64)
        assert shared.router.metric(by_prefix) == found + 1


async def test_a_list_of_one_prompt_is_routed_as_that_prompt(litellm: Any, shared: Fleet) -> None:
    text = f"in a list {LONG}"
    async with gateway(
        litellm, [shared.engines[one].url for one in ENGINES], urls([shared.router]), timeout_s=10
    ) as made:
        await made.atext_completion(model="m", prompt=text, max_tokens=4)
        shared.settle()
        by_prefix = 'kvroute_route_requests_total{model="tiny",reason="prefix"}'
        found = shared.router.metric(by_prefix)
        await made.atext_completion(model="m", prompt=[text], max_tokens=4)
        assert shared.router.metric(by_prefix) == found + 1
        assert not made.kvroute.fallbacks


async def test_the_data_parallel_rank_is_passed(litellm: Any, shared: Fleet) -> None:
    for rank in (0, 1):
        text = f"rank {rank} {LONG}"
        body = {"model": "ranks", "messages": [{"role": "user", "content": text}], "max_tokens": 4}
        headers = {"X-data-parallel-rank": str(rank)}
        assert shared.engines["ranks"].http.post("/v1/chat/completions", json=body, headers=headers).status_code == 200
        shared.settle()
        async with gateway(
            litellm, [shared.engines["ranks"].url], urls([shared.router]), "ranks", timeout_s=10
        ) as made:
            answer, _ = await ask(made, text)
            assert answer.usage.prompt_tokens_details.cached_tokens > 64


async def test_without_a_router_litellm_chooses(litellm: Any, shared: Fleet) -> None:
    nobody = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
    async with gateway(litellm, [shared.engines["vllm-0"].url], nobody, timeout_s=10) as made:
        answer, _ = await ask(made, "hello")
        assert answer.choices[0].message.content
        assert made.kvroute.fallbacks == {"unreachable": 1}


async def test_a_hanging_router_costs_a_bounded_time(litellm: Any, shared: Fleet) -> None:
    settings = [instance("vllm-0", shared.engines["vllm-0"])]
    with router(settings) as hangs:
        async with gateway(litellm, [shared.engines["vllm-0"].url], urls([hangs])) as made:
            await check_hanging(made, hangs)


async def check_hanging(made: Any, hangs: RouterProcess) -> None:
    hangs.wait_until_ready()
    hangs.pause()
    began = time.monotonic()
    answer, _ = await ask(made, "hello")
    assert time.monotonic() - began < BOUND_S
    assert answer.choices[0].message.content
    assert made.kvroute.fallbacks == {"slow": 1}


async def test_a_token_opens_the_router(litellm: Any, shared: Fleet) -> None:
    engine = shared.engines["vllm-0"]
    with router([instance("vllm-0", engine)], auth={"token": "open-sesame"}) as guarded:
        guarded.wait_until_ready()
        for token, reasons in (("open-sesame", {}), ("wrong", {"router-401": 1})):
            async with gateway(litellm, [engine.url], urls([guarded]), token=token, timeout_s=10) as made:
                await ask(made, "hello")
                assert made.kvroute.fallbacks == reasons


async def test_a_dead_engines_request_goes_to_another(litellm: Any) -> None:
    process = EngineProcess("--face", "vllm", "--prefill-us", "0", "--decode-us", "0")
    process.use_events = False
    slow_polls = {"load_interval_s": 60, "discovery_interval_s": 60}  # the router must not see it first
    with cpu_engine("vllm", **HASHES) as lives:
        try:
            process.start()
            settings = [instance("lives", lives), instance("dies", process)]
            with router(settings, polling=slow_polls) as one:
                one.wait_until_ready()
                async with gateway(litellm, [lives.url, process.url], urls([one]), timeout_s=10) as made:
                    process.stop(signal.SIGKILL)
                    for number in range(4):
                        _, engine = await ask(made, f"{number} {LONG}")
                        assert engine == lives.url
                    assert not made.kvroute.fallbacks
                    assert one.metric("kvroute_route_requests_total") > 4  # at least one was asked for twice
        finally:
            process.close()


async def test_a_model_that_the_router_does_not_know_is_left_to_litellm(litellm: Any, shared: Fleet) -> None:
    with cpu_engine("vllm", model="just-loaded", **HASHES) as knows:
        async with gateway(litellm, [knows.url], urls([shared.router]), "just-loaded", timeout_s=10) as made:
            answer, _ = await ask(made, "hello")
            assert answer.choices[0].message.content
            assert made.kvroute.fallbacks == {"unknown-model": 1}


FAILURES: dict[str, tuple[Any, dict[str, Any]]] = {
    "refused": (engines.refusing, {"kind": "connect", "detail": "no connection"}),
    "silent host": (engines.silent_host, {"kind": "connect", "detail": "no connection in time"}),
    "hangs": (lambda: engines.failing_engine(engines.hangs), {"kind": "timeout", "detail": "no answer in time"}),
    "breaks off": (
        lambda: engines.failing_engine(engines.answers_in_part),
        {"kind": "connect", "detail": "the connection was closed"},
    ),
    "503": (lambda: engines.failing_engine(engines.says(503)), {"kind": "status", "status": 503}),
}


@pytest.mark.parametrize(("failing", "error"), FAILURES.values(), ids=FAILURES.keys())
async def test_an_engine_that_fails_is_reported_and_the_next_one_answers(
    litellm: Any, failing: Any, error: dict[str, Any]
) -> None:
    with (
        failing() as fails,
        cpu_engine("vllm", **HASHES) as lives,
        recording_router([fails, lives.url]) as told,
    ):
        async with gateway(litellm, [fails, lives.url], [told.url], timeout_s=10) as made:
            _, engine = await ask(made, "hello", timeout=2)
            assert engine == lives.url
            await until(lambda: len(told.told) == 2)
    assert dict(told.errors()) == {fails: error, lives.url: None}


async def test_a_stream_that_breaks_off_is_reported(litellm: Any) -> None:
    with engines.failing_engine(engines.breaks_off) as fails, recording_router([fails]) as told:
        async with gateway(litellm, [fails], [told.url], timeout_s=10) as made:
            asked = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
            with pytest.raises(litellm.APIConnectionError):
                _ = [piece async for piece in await made.acompletion(**asked, stream=True)]
            await until(lambda: bool(told.told))
    assert told.errors()[0] == (fails, {"kind": "connect", "detail": "the connection was closed"})
