"""The demo's scenes, in order: requests by the router, the same by turns, a stranger, an engine killed and back."""

from __future__ import annotations

import contextlib
import textwrap
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from deploy.demo_client import RouterClient, wait_until
from deploy.demo_engines import MODEL, PREFILL_US, Delivered, DemoEngine
from deploy.demo_processes import DemoFailed, DemoProcesses
from deploy.demo_prompts import Ask, Script
from deploy.demo_table import Routed, comparison, decisions, legend, totals

START_S = 30
FOLLOW_S = 10
OPENING_WORDS = 24
STRANGER = "vllm-2"
FLEET = {"vllm-0": "vllm", "vllm-1": "vllm", "sglang-0": "sglang"}


class Scenes:
    """`run` shows them all. `close` closes connections; the processes belong to `processes`."""

    def __init__(self, screen: Console, processes: DemoProcesses, router: RouterClient, folder: Path) -> None:
        self._screen = screen
        self._processes = processes
        self._router = router
        self._config = folder / "fleet.yaml"
        self.engines = {name: DemoEngine(processes, name, face) for name, face in FLEET.items()}
        self._stranger = DemoEngine(processes, STRANGER, "vllm", hash_seed="42")
        self._routed: list[Routed] = []

    def run(self, port: int) -> None:
        """All of them. The router will listen on `port`. Raises DemoFailed."""
        self.start(port)
        by_router = self._ask_by_router()
        self._show_decisions()
        by_turns = self._ask_by_turns()
        self._screen.print("\nThe same requests, each time with empty caches:")
        self._screen.print(comparison({"kvroute": totals(by_router), "round robin": totals(by_turns)}))
        self._meet_stranger()
        self._lose_engine()
        self._show_hit_rate()

    def opening(self) -> str:
        """The beginning of the document of which most is held now: a prompt to try. It is a few blocks long."""
        held = {
            text: max(one["reusable_tokens"] for one in self._router.match({"model": MODEL, "prompt": text}))
            for text in Script().openings(OPENING_WORDS)
        }
        return max(held, key=lambda text: held[text])

    def close(self) -> None:
        """Close all connections."""
        for engine in (*self.engines.values(), self._stranger):
            engine.close()

    def start(self, port: int) -> None:
        """Engines and router; all of them answer, and the engines are followed."""
        engines = list(self.engines.values())
        settings = {
            "log": {"format": "text"},
            "hash": {"algorithm": "sha256_cbor", "seed": "0"},
            "instances": [engine.settings() for engine in engines],
        }
        self._config.write_text(yaml.safe_dump(settings, sort_keys=False))
        with self._step("Starting two CPU engines with vLLM's face, one with SGLang's"):
            for engine in (*engines, self._stranger):
                engine.start()
            for engine in engines:
                self._wait(engine.answers, f"{engine.name} did not answer", START_S)
        with self._step("Starting the router: kvroute serve --config fleet.yaml"):
            self._processes.start_router(self._config, port)
            self._wait(self._router.ready, "the router was not ready", START_S)
            for engine in engines:
                self._wait(lambda e=engine: self._is_live(e), f"{engine.name} is not followed", FOLLOW_S)  # type: ignore[misc]

    def _ask_by_router(self) -> list[Delivered]:
        """Every promise of the router must be kept to the token: all events are drained between two requests."""
        script = Script()
        with self._step("Sending requests, each where POST /route says"):
            for ask in script.asks():
                prompt = script.body(ask)
                routed = self.route(ask, prompt)
                script.answered(ask, routed.delivered.text)
                self._routed.append(routed)
        return [one.delivered for one in self._routed]

    def route(self, ask: Ask, prompt: dict[str, Any], only: list[str] | None = None) -> Routed:
        """Ask the router (about the instances `only`), then the engine it names. DemoFailed when that reuses another
        number of tokens than the router said."""
        answer = self._router.route({"model": MODEL, "candidates": only, **prompt})
        engine = self.engines[answer["instance"]]
        delivered = engine.ask(prompt, answer["headers"])
        promised, cached = answer["reusable_tokens"], delivered.cached_tokens
        if promised != cached:
            raise DemoFailed(f"{ask.about}: {promised} tokens reusable at {engine.name}, it reused {cached}")
        self._router.finished(answer["request_id"], delivered)
        self._drain(engine)
        return Routed(ask.about, answer, delivered)

    def _ask_by_turns(self) -> list[Delivered]:
        script, delivered = Script(), list[Delivered]()
        with self._step("\nEmptying the caches, and sending the same requests to the engines by turns"):
            for engine in self.engines.values():
                engine.empty()
            for ask, engine in zip(script.asks(), cycle(self.engines.values()), strict=False):
                self._processes.check()
                delivered.append(engine.ask(script.body(ask), {}))
                script.answered(ask, delivered[-1].text)
        return delivered

    def _show_decisions(self) -> None:
        self._screen.print(f"\nWhere requests went. A token that is not cached costs {PREFILL_US} us of prefill.")
        self._screen.print(decisions(self._routed))
        self._screen.print(legend(self._routed))
        count = len(self._routed)
        self._screen.print(f"What the router called reusable is what the engine reused in {count} of {count} requests.")

    def _meet_stranger(self) -> None:
        self._screen.print()
        with self._step(f"Adding {STRANGER}, which runs with PYTHONHASHSEED=42: POST /instances"):
            self._wait(self._stranger.answers, f"{STRANGER} did not answer", START_S)
            self._stranger.ask({"prompt": "a stranger " * 40}, {})
            self._router.add(self._stranger.settings())
            self._wait(lambda: self._state(self._stranger) == "refused", f"{STRANGER} was not refused", FOLLOW_S)
        self._screen.print(f"{STRANGER} is refused: it gets requests by load, its blocks are not indexed. Why:")
        advice = self._router.worker(STRANGER)["advice"]
        lines = textwrap.wrap(advice, self._screen.width - 4, break_on_hyphens=False)
        self._screen.out(textwrap.indent("\n".join(lines), "  "), style="yellow")

    def _lose_engine(self) -> None:
        """Killed and started again on the same ports: what it held is gone, and the router must not believe in it."""
        for engine in self.engines.values():
            self._drain(engine)
        held = {name: self._reusable(name) for name in FLEET if FLEET[name] == "vllm"}
        name = max(held, key=lambda one: held[one])
        engine = self.engines[name]
        if not held[name]:
            raise DemoFailed(f"nobody holds the {self._probe()[0].subject}")
        self._screen.print()
        with self._step(f"Killing {name}, which holds {held[name]} tokens of a document, and starting it again"):
            engine.kill()
            engine.start()
            self._wait(engine.answers, f"{name} did not come back", START_S)
            back = time.monotonic()
            self._wait(lambda: not self._reusable(name), f"{name} is still believed to hold tokens", FOLLOW_S)
            empty_s = time.monotonic() - back
            self._wait(lambda: self._is_live(engine), f"{name} is not followed", FOLLOW_S)
        self._screen.print(f"{name} is believed empty {empty_s:.1f} s after it answered again.")

    def _show_hit_rate(self) -> None:
        reused, asked = (self._router.total(f"kvroute_{name}_tokens_total") for name in ("reusable", "prompt"))
        came = self._router.total("kvroute_delivered_tokens_total")
        self._screen.print(
            f"\nHit rate of the router: {reused:.0f} of {asked:.0f} prompt tokens ({reused / asked:.0%}),"
        )
        self._screen.print(f"of which the engines have delivered {came:.0f}.")

    def _probe(self) -> tuple[Ask, dict[str, Any]]:
        """A document's first question, to see who holds it."""
        script = Script()
        ask = next(ask for ask in script.asks() if not ask.is_chat)
        return ask, {"model": MODEL, **script.body(ask)}

    def _reusable(self, name: str) -> int:
        candidates = self._router.match(self._probe()[1])
        return max((one["reusable_tokens"] for one in candidates if one["instance"] == name), default=0)

    def _state(self, engine: DemoEngine) -> str | None:
        workers = self._router.instance(engine.name)["workers"]
        return workers[0]["state"] if workers else None

    def _is_live(self, engine: DemoEngine) -> bool:
        return self._state(engine) == "live"

    def _drain(self, engine: DemoEngine) -> None:
        """Until the router has applied all that the engine has published."""

        def drained() -> bool:
            return not engine.published_after(self._router.worker(engine.name)["seq"])

        self._wait(drained, f"the router lags behind {engine.name}", FOLLOW_S)

    def _wait(self, true: Callable[[], bool], otherwise: str, limit_s: float) -> None:
        """As `wait_until`; at once DemoFailed when a process ends."""

        def alive_and_true() -> bool:
            self._processes.check()
            return true()

        wait_until(alive_and_true, otherwise, limit_s)

    @contextlib.contextmanager
    def _step(self, doing: str) -> Iterator[None]:
        began = time.monotonic()
        with self._screen.status(f"{doing.strip()} ...", spinner="line"):
            yield
        self._screen.print(f"{doing} ({time.monotonic() - began:.1f} s)")
