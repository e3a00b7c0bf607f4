"""Adapters that are loaded, moved and reloaded at run time on real servers: what a router says of them, and when."""

from __future__ import annotations

import asyncio
import json
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol

import aiohttp

KNOWN_S: Final = 20.0
SETTLE_S: Final = 1.5
LATE_S: Final = 3.0
RANK: Final = 8
CONFIG: Final = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "base_model_name_or_path": "tiny",
    "r": RANK,
    "lora_alpha": 16,
    "lora_dropout": 0.0,
    "bias": "none",
    "target_modules": ["q_proj", "v_proj"],
}
LOAD_PATHS: Final = {"vllm": "/v1/", "sglang": "/"}
MODEL_PATHS: Final = {"vllm": "/v1/models", "sglang": "/model_info"}
"""Where a server says in which folder its model is."""


class Serving(Protocol):
    """A server that loads adapters."""

    name: str
    face: str

    @property
    def url(self) -> str:
        """Where it is."""

    def settings(self) -> dict[str, Any]:
        """Its settings for the router, with the model's name."""


@dataclass(eq=False)
class Adapters:
    """The steps, on two vLLM servers and then on each SGLang one. Adapters are written into `folder`."""

    router: str
    engines: Sequence[Serving]
    folder: Path
    steps: list[dict[str, Any]] = field(default_factory=list)
    _http: aiohttp.ClientSession | None = None

    async def run(self) -> list[dict[str, Any]]:
        """A row per step: `known_s` until requests for it are routed rightly, wrong answers until then, and the
        promises against what was delivered; `problem` in words, empty where there is none."""
        timeout = aiohttp.ClientTimeout(total=30.0)
        async with aiohttp.ClientSession(timeout=timeout) as self._http:
            vllm = [engine for engine in self.engines if engine.face == "vllm"]
            sglang = [engine for engine in self.engines if engine.face == "sglang"]
            if len(vllm) >= 2:
                await self._moves(vllm[0], vllm[1])
            for engine in sglang:
                await self._reloads(engine)
        return self.steps

    async def _moves(self, here: Serving, there: Serving) -> None:
        """An adapter on one of two servers, then on the other under another path, then there under the first."""
        first, second = await self._written(here)
        await self._load(here, "sql", first)
        await self._step("loaded on one of two", here, "sql")
        await self._unload(here, "sql")
        await self._load(there, "sql", second)
        await self._step("moved, under another path", there, "sql")
        await self._unload(there, "sql")
        await self._load(there, "sql", first)
        await self._step("loaded again under the other path", there, "sql")
        await self._unload(there, "sql")

    async def _reloads(self, engine: Serving) -> None:
        """The only server of a model: an adapter, and again under another path."""
        first, second = await self._written(engine)
        name = f"{engine.settings()['model']}:sql"
        await self._load(engine, "sql", first)
        await self._step("loaded (SGLang)", engine, name)
        await self._unload(engine, "sql")
        await self._load(engine, "sql", second)
        await self._step("loaded again under another path (SGLang)", engine, name)
        await self._unload(engine, "sql")

    async def _written(self, engine: Serving) -> list[Path]:
        """Two adapters for what it serves."""
        model = await self._model_path(engine)
        return [write_adapter(self.folder / f"{engine.name}-{number}", model, number) for number in (1, 2)]

    async def _model_path(self, engine: Serving) -> Path:
        assert self._http is not None
        async with self._http.get(f"{engine.url}{MODEL_PATHS[engine.face]}") as answer:
            said = await answer.json()
        return Path(said["data"][0]["root"] if engine.face == "vllm" else said["model_path"])

    async def _step(self, what: str, engine: Serving, model: str) -> None:
        loaded_s = time.monotonic()
        wrong = 0
        prompts = [_prompt(seed) for seed in range(4)]  # the same ones in every step: old blocks must count for nothing
        while (answer := await self._route(model, prompts[0], dry_run=True))["instance"] != engine.name:
            wrong += 1
            if time.monotonic() > loaded_s + KNOWN_S:
                self._add(what, None, wrong, [], f"{what}: not known after {KNOWN_S:g} s: {answer}")
                return
            await asyncio.sleep(0.05)
        known_s = time.monotonic() - loaded_s
        promised = [pair for _ in range(2) for pair in await self._pass(model, prompts)]
        over = [pair for pair in promised if pair[0] > pair[1]]
        problem = f"{what}: promised {over[0][0]}, {over[0][1]} delivered, {len(over)} times" if over else ""
        if not problem and known_s > LATE_S:
            problem = f"{what}: known only after {known_s:.1f} s"
        self._add(what, known_s, wrong, promised, problem)

    async def _pass(self, model: str, prompts: Sequence[str]) -> list[tuple[int, int]]:
        """Promised and delivered tokens of each prompt, when the router has had time to hear of all before."""
        pairs = []
        for prompt in prompts:
            await asyncio.sleep(SETTLE_S / len(prompts))
            route = await self._route(model, prompt)
            pairs.append((route["reusable_tokens"], await self._complete(route, model, prompt)))
        await asyncio.sleep(SETTLE_S)
        return pairs

    def _add(self, what: str, known_s: float | None, wrong: int, promised: list[tuple[int, int]], problem: str) -> None:
        row = {
            "step": what,
            "known_s": None if known_s is None else round(known_s, 2),
            "wrong_answers": wrong,
            "promised_tokens": sum(pair[0] for pair in promised),
            "delivered_tokens": sum(pair[1] for pair in promised),
            "promised_too_much": sum(pair[0] > pair[1] for pair in promised),
            "problem": problem,
        }
        self.steps.append(row)
        print(row, flush=True)

    async def _route(self, model: str, prompt: str, *, dry_run: bool = False) -> dict[str, Any]:
        """The router's answer; `instance` is None when it has none, and `status` then says why."""
        assert self._http is not None
        question = {"model": model, "prompt": prompt, "dry_run": dry_run}
        async with self._http.post(f"{self.router}/route", json=question) as answer:
            said: dict[str, Any] = await answer.json()
            return {"instance": None, **said, **_named(answer.headers.get("x-kvroute-instance"))}

    async def _complete(self, route: dict[str, Any], model: str, prompt: str) -> int:
        """The cached tokens of the answer."""
        assert self._http is not None
        body = {"model": model, "prompt": prompt, "max_tokens": 2, "ignore_eos": True}
        async with self._http.post(f"{route['url']}/v1/completions", json=body, headers=route.get("headers")) as answer:
            said = await answer.json()
            if answer.status != 200:
                raise RuntimeError(f"{route['instance']} answered {answer.status}: {said}")
        finished = f"{self.router}/requests/{route['request_id']}/finished"
        cached = int((said["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
        async with self._http.post(finished, json={"cached_tokens": cached}) as answer:
            await answer.read()
        return cached

    async def _load(self, engine: Serving, name: str, path: Path) -> None:
        await self._tell(engine, "load_lora_adapter", {"lora_name": name, "lora_path": str(path)})

    async def _unload(self, engine: Serving, name: str) -> None:
        await self._tell(engine, "unload_lora_adapter", {"lora_name": name})

    async def _tell(self, engine: Serving, what: str, body: dict[str, str]) -> None:
        assert self._http is not None
        async with self._http.post(f"{engine.url}{LOAD_PATHS[engine.face]}{what}", json=body) as answer:
            if answer.status != 200:
                raise RuntimeError(f"{engine.name} {what}: {answer.status} {await answer.text()}")


def write_adapter(folder: Path, model: Path, seed: int) -> Path:
    """A LoRA adapter of random weights for the Llama whose config.json is in `model`; its folder."""
    config = json.loads((model / "config.json").read_text())
    hidden, size = (
        config["hidden_size"],
        config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
    )
    outputs = {"q_proj": config["num_attention_heads"] * size, "v_proj": config["num_key_value_heads"] * size}
    shapes = {
        f"base_model.model.model.layers.{layer}.self_attn.{name}.lora_{part}.weight": shape
        for layer in range(config["num_hidden_layers"])
        for name, output in outputs.items()
        for part, shape in (("A", (RANK, hidden)), ("B", (output, RANK)))
    }
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG))
    (folder / "adapter_model.safetensors").write_bytes(_safetensors(shapes, Random(seed)))
    return folder


def _safetensors(shapes: Mapping[str, tuple[int, int]], random: Random) -> bytes:
    """The format: the length of a JSON header, the header, the numbers."""
    header, numbers = dict[str, Any](), array("f")
    for name, (rows, columns) in shapes.items():
        begin = 4 * len(numbers)
        numbers.extend(random.uniform(-0.02, 0.02) for _ in range(rows * columns))
        header[name] = {"dtype": "F32", "shape": [rows, columns], "data_offsets": [begin, 4 * len(numbers)]}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + numbers.tobytes()


def _named(instance: str | None) -> dict[str, str]:
    return {} if instance is None else {"instance": instance}


def _prompt(seed: int) -> str:
    random = Random(seed)
    return " ".join(f"{random.randrange(10_000)}" for _ in range(60))
