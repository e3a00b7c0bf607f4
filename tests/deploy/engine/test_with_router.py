"""The CPU engine behind the real router: what the router says can be reused is what the engine reuses."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from deploy.engine.settings import Face
from tests.support.cpu_engine import CpuEngine, EngineProcess, cpu_engine, drained
from tests.support.fleet import fleet, seq_of
from tests.support.service import Running, serving, wait_until

REQUESTS = 120


class Ask(NamedTuple):
    """A prompt and its namespace."""

    tokens: list[int]
    space: dict[str, str]


class Conversations:
    """Sessions with one of two system prompts, each turn the former one's prompt and output and something new."""

    def __init__(self, seed: int, spaces: list[dict[str, str]]) -> None:
        self._random = random.Random(seed)
        self._systems = [self._text(150), self._text(64)]
        self._spaces = spaces
        self._open: list[Ask] = []

    def next(self) -> Ask:
        """A turn of an open session, a new one, or the same prompt once more."""
        dice = self._random.random()
        if self._open and dice < 0.15:
            return self._random.choice(self._open)
        if self._open and dice < 0.7:
            former = self._open.pop(self._random.randrange(len(self._open)))
            return Ask(former.tokens + self._text(self._random.randint(1, 80)), former.space)
        return Ask(self._random.choice(self._systems) + self._text(40), self._random.choice(self._spaces))

    def answered(self, ask: Ask, output: list[int]) -> None:
        """The session goes on from its output; long ones end."""
        if len(ask.tokens) < 500:
            self._open.append(Ask(ask.tokens + output, ask.space))

    def _text(self, length: int) -> list[int]:
        return [self._random.randrange(8192) for _ in range(length)]


@contextmanager
def beside(engine: CpuEngine, face: Face, **fields: Any) -> Iterator[Running]:
    """The router with this engine, live."""
    settings = {"id": "e", "engine": face, "model": "tiny", "url": engine.url, **fields}
    with serving(fleet(settings)) as run:
        for rank in range(len(engine.engine.ranks)):
            wait_until(lambda r=rank: _state(run, r) == "live", 10.0, lambda: run.instance("e"))  # type: ignore[misc]
        drained(engine, lambda rank: seq_of(run, "e", rank))
        yield run


def _state(run: Running, rank: int) -> str | None:
    workers = run.instance("e")["workers"]
    return workers[rank]["state"] if rank < len(workers) else None


def delivered(run: Running, engine: CpuEngine, ask: Ask, max_tokens: int) -> tuple[int, int, list[int]]:
    """What the router promises, what the engine reuses, and the output; events are drained afterwards."""
    route = run.route(ask.tokens, model="tiny", **ask.space)
    chosen = [one for one in route["candidates"] if one["dp_rank"] == route["dp_rank"]]
    answer = engine.complete(ask.tokens, headers=route["headers"], max_tokens=max_tokens, **ask.space)
    drained(engine, lambda rank: seq_of(run, "e", rank))
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return chosen[0]["reusable_tokens"], cached, answer["choices"][0]["token_ids"]


def check_promises(run: Running, engine: CpuEngine, spaces: list[dict[str, str]], seed: int) -> int:
    """Every promise is kept to the token; the tokens reused in all."""
    talk, chance, reused = Conversations(seed, spaces), random.Random(seed), 0
    for number in range(REQUESTS):
        ask = talk.next()
        promised, cached, output = delivered(run, engine, ask, chance.randint(1, 40))
        assert promised == cached, (number, len(ask.tokens), ask.space)
        talk.answered(ask, output)
        reused += cached
    return reused


SALTS: list[dict[str, str]] = [{}, {"cache_salt": "a"}, {"cache_salt": "b"}]
KEYS: list[dict[str, str]] = [*SALTS, {"extra_key": "a"}, {"extra_key": "k", "cache_salt": "b"}]


@pytest.mark.parametrize(
    ("face", "fields", "spaces"),
    [
        ("vllm", {"block_size": 16}, SALTS),
        ("vllm", {"block_size": 8, "hash_algorithm": "xxhash_cbor", "hash_seed": "42", "step_tokens": 100}, SALTS),
        ("sglang", {"block_size": 1, "step_tokens": 100}, SALTS),
        ("sglang", {"block_size": 16, "step_tokens": 96, "policy": "slru"}, SALTS),
        ("sglang", {"block_size": 1, "dynamo": True}, KEYS),
        ("sglang", {"block_size": 4, "eagle": True}, SALTS),
    ],
)
def test_what_the_router_promises_the_engine_delivers(
    face: Face, fields: dict[str, Any], spaces: list[dict[str, str]]
) -> None:
    with cpu_engine(face, cache_tokens=2400, **fields) as engine, beside(engine, face) as run:
        reused = check_promises(run, engine, spaces, seed=len(spaces) + fields["block_size"])
        assert reused > 5000, "the workload hits"
        assert engine.engine.ranks[0].cache.stats().evicted > 1000, "the workload evicts"
        assert run.worker("e")["gaps"] == 0


@pytest.mark.parametrize("face", ["vllm", "sglang"])
def test_each_rank_is_a_cache_of_its_own_and_the_router_steers_to_it(face: Face) -> None:
    with cpu_engine(face, dp_size=2, cache_tokens=4000) as engine, beside(engine, face, dp_size=2) as run:
        check_promises(run, engine, SALTS, seed=7)
        prompt = list(range(5000, 5100))
        engine.complete(prompt, headers={"X-data-parallel-rank": "1"})
        drained(engine, lambda rank: seq_of(run, "e", rank))
        route = run.route(prompt, model="tiny")
        assert (route["dp_rank"], route["reason"], route["headers"]) == (1, "prefix", {"X-data-parallel-rank": "1"})


@pytest.mark.parametrize("face", ["vllm", "sglang"])
def test_text_is_routed_by_the_tokens_the_engine_will_see(face: Face) -> None:
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "Tell me about caches, please. " * 8}]}
    with cpu_engine(face) as engine, beside(engine, face) as run:
        for turn in range(4):
            route = run.http.post("/route", json={"model": "tiny", "explain": True, **chat}).json()
            answer = engine.http.post(
                "/v1/chat/completions", json={**chat, "max_tokens": 40, "ignore_eos": True}
            ).json()
            assert route["prompt_tokens"] == answer["usage"]["prompt_tokens"]
            assert route["reusable_tokens"] == answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert turn == 0 or route["reusable_tokens"] > route["prompt_tokens"] // 2
            chat["messages"] += [answer["choices"][0]["message"], {"role": "user", "content": f"And then, {turn}?"}]
            drained(engine, lambda rank: seq_of(run, "e", rank))


@pytest.mark.parametrize("face", ["vllm", "sglang"])
def test_a_killed_engine_that_is_back_is_believed_empty_within_two_seconds(face: str) -> None:
    process = EngineProcess("--face", face, "--prefill-us", "0", "--decode-us", "0")
    prompt = list(range(1000, 1200))
    try:
        process.start()
        settings = {"id": "e", "engine": face, "model": "tiny", "url": process.url}
        with serving(fleet(settings)) as run:
            run.wait_for_state("e", "live")
            run.http.post(f"{process.url}/v1/completions", json={"prompt": prompt, "max_tokens": 2}).raise_for_status()
            wait_until(lambda: _reusable(run, prompt) > 190, 5.0, lambda: run.instance("e"))
            process.stop(signal.SIGKILL)
            process.start()
            back = time.monotonic()
            wait_until(lambda: _reusable(run, prompt) == 0, 2.0, lambda: run.instance("e"))
            assert time.monotonic() - back < 2.0
            run.wait_for_state("e", "live")
            run.http.post(f"{process.url}/v1/completions", json={"prompt": prompt, "max_tokens": 2}).raise_for_status()
            wait_until(lambda: _reusable(run, prompt) > 190, 5.0, lambda: run.instance("e"))
    finally:
        process.close()


def _reusable(run: Running, prompt: list[int]) -> int:
    reusable: int = run.candidates(prompt, model="tiny")["e"]["reusable_tokens"]
    return reusable
