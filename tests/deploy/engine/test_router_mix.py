"""Hundreds of requests of every kind through the real router to both faces: each promise is kept to the token."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from tests.support.cpu_engine import CpuEngine, cpu_engine, drained
from tests.support.fleet import fleet, seq_of
from tests.support.service import Running, serving, wait_until

REQUESTS = 320
CACHE_TOKENS = 2000
ADAPTERS = {"sql": "/adapters/sql", "law": "/adapters/law"}
SPACES: list[dict[str, str]] = [
    {},
    {},
    {"cache_salt": "a"},
    {"lora": "sql"},
    {"lora": "law", "cache_salt": "b"},
]
WORDS = "what the engine holds of this prompt is told by its events and nobody has to guess it again".split()  # noqa: SIM905

Kind = Literal["ids", "text", "chat"]
KINDS: tuple[Kind, ...] = ("ids", "text", "chat")


@dataclass
class Talk:
    """A conversation of one kind, in one namespace."""

    kind: Kind
    space: dict[str, str]
    ids: list[int] = field(default_factory=list)
    text: str = ""
    chat: list[dict[str, str]] = field(default_factory=list)

    def prompt(self) -> dict[str, Any]:
        """As fields of a request to the engine."""
        return {"messages": self.chat} if self.kind == "chat" else {"prompt": self.ids or self.text}

    def is_long(self) -> bool:
        return len(self.ids) > 400 or len(self.text) + sum(len(turn["content"]) for turn in self.chat) > 1400


class Mix:
    """Draws the next turn of an open conversation, an earlier prompt once more, or a new one on a shared beginning."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._open: list[Talk] = []
        self._ids = [self._random_ids(150), self._random_ids(80)]
        self._texts = [self._random_text(90), self._random_text(40)]

    def next(self) -> Talk:
        if self._open and self.random.random() < 0.65:
            talk = self.random.choice(self._open)
            if self.random.random() < 0.8:
                self._add(talk)
            return talk
        talk = Talk(self.random.choice(KINDS), self.random.choice(SPACES))
        if talk.kind == "ids":
            talk.ids = list(self.random.choice(self._ids))
        elif talk.kind == "text":
            talk.text = self.random.choice(self._texts)
        else:
            talk.chat = [{"role": "system", "content": self.random.choice(self._texts)}]
        self._add(talk)
        self._open.append(talk)
        return talk

    def answered(self, talk: Talk, choice: dict[str, Any]) -> None:
        """Most conversations go on from the answer; long ones end."""
        if talk.kind == "ids":
            talk.ids += choice["token_ids"]
        elif talk.kind == "text":
            talk.text += choice["text"]
        else:
            talk.chat.append({"role": "assistant", "content": choice["message"]["content"]})
        if talk.is_long() and talk in self._open:
            self._open.remove(talk)

    def _add(self, talk: Talk) -> None:
        if talk.kind == "ids":
            talk.ids += self._random_ids(self.random.randint(1, 60))
        elif talk.kind == "text":
            talk.text += " " + self._random_text(self.random.randint(1, 30))
        else:
            talk.chat.append({"role": "user", "content": self._random_text(self.random.randint(1, 30))})

    def _random_ids(self, count: int) -> list[int]:
        return self.random.choices(range(8192), k=count)

    def _random_text(self, words: int) -> str:
        return " ".join(self.random.choices(WORDS, k=words))


@contextmanager
def two_faces() -> Iterator[tuple[Running, dict[str, CpuEngine]]]:
    """The router with one engine of each face, two ranks each, small caches, and adapters."""
    same: dict[str, Any] = {"dp_size": 2, "cache_tokens": CACHE_TOKENS, "adapters": ADAPTERS}
    with (
        cpu_engine("vllm", hash_algorithm="sha256_cbor", hash_seed="0", **same) as vllm,
        cpu_engine("sglang", block_size=4, dynamo=True, step_tokens=128, **same) as sglang,
    ):
        engines = {"v": vllm, "s": sglang}
        kinds = {"v": "vllm", "s": "sglang"}
        instances = [
            {"id": name, "engine": kinds[name], "model": "tiny", "url": one.url, "dp_size": 2}
            for name, one in engines.items()
        ]
        with serving(fleet(*instances)) as run:
            for name in engines:
                wait_until(lambda n=name: _live(run, n) == 2, 10.0, lambda: run.http.get("/instances").text)  # type: ignore[misc]
            yield run, engines


def _live(run: Running, name: str) -> int:
    return sum(worker["state"] == "live" for worker in run.instance(name)["workers"])


@pytest.mark.parametrize("seed", [1, 2])
def test_every_promise_is_kept_by_both_faces_and_all_ranks(seed: int) -> None:
    mix, seen, reused = Mix(seed), Counter[tuple[str, int]](), Counter[str]()
    with two_faces() as (run, engines):
        for number in range(REQUESTS):
            talk = mix.next()
            route = _route(run, talk, mix.random)
            engine = engines[route["instance"]]
            choice, prompt_tokens, cached = _ask(engine, talk, route["headers"], mix.random.randint(1, 24))
            about = number, talk.kind, talk.space, route["instance"], route["dp_rank"]
            assert route["prompt_tokens"] == prompt_tokens, about
            assert route["reusable_tokens"] == cached, about
            seen[route["instance"], route["dp_rank"]] += 1
            reused[talk.kind] += cached
            reused["adapters"] += cached if "lora" in talk.space else 0
            reused["salts"] += cached if "cache_salt" in talk.space else 0
            mix.answered(talk, choice)
            drained(engine, lambda rank, name=route["instance"]: seq_of(run, name, rank))  # type: ignore[misc]
        evicted = {
            (name, rank.number): rank.cache.stats().evicted
            for name, one in engines.items()
            for rank in one.engine.ranks
        }
    print(f"\n{REQUESTS} of {REQUESTS} promises kept; requests {dict(seen)}, reused {dict(reused)}, evicted {evicted}")
    assert min(seen.values()) > 20, "every rank of both faces is used"
    assert len(seen) == 4
    assert min(reused.values()) > 1000, "every kind of request hits"
    assert min(evicted.values()) > 200, "every cache evicts"


def _route(run: Running, talk: Talk, chance: random.Random) -> dict[str, Any]:
    """Half of the time only one of the two may be chosen, so that prompts get around."""
    body: dict[str, Any] = {"model": "tiny", **talk.prompt(), **talk.space}
    if chance.random() < 0.5:
        body["candidates"] = [chance.choice(["v", "s"])]
    answer = run.http.post("/route", json=body)
    assert answer.status_code == 200, answer.text
    said: dict[str, Any] = answer.json()
    return said


def _ask(engine: CpuEngine, talk: Talk, headers: dict[str, str], max_tokens: int) -> tuple[dict[str, Any], int, int]:
    """The choice, the prompt's tokens and how many were cached."""
    body: dict[str, Any] = {"max_tokens": max_tokens, "ignore_eos": True, "return_token_ids": True, **talk.prompt()}
    if "cache_salt" in talk.space:
        body["cache_salt"] = talk.space["cache_salt"]
    adapter = talk.space.get("lora")
    if engine.engine.settings.face == "vllm":
        body["model"] = adapter or "tiny"
    else:
        body |= {"model": "tiny", "lora_path": adapter}
    path = "/v1/chat/completions" if talk.kind == "chat" else "/v1/completions"
    answer = engine.http.post(path, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    said = answer.json()
    usage = said["usage"]
    return said["choices"][0], usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
