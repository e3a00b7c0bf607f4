"""The demo: a real router, recorded event streams of real engines, and what the router makes of them.

python -m deploy.demo [--keep]
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

import yaml
from rich.console import Console

from deploy.demo_client import RouterClient, wait_until
from deploy.demo_processes import DemoFailed, DemoProcesses, free_port
from deploy.demo_table import Asked, console, decisions, legend
from deploy.recording import RECORDINGS, Prompt, read_prompts

TOTAL_S = 60
START_S = 20
FOLLOW_S = 10

MODEL = "demo-model"
FLEET = {"vllm-0": "vllm", "vllm-1": "vllm", "sglang-0": "sglang"}
FIRST_STOP = {"vllm-0": 81, "vllm-1": 81, "sglang-0": 17}
"""Up to which batch each stream runs at first. Both vLLM publish the same recording; one goes further in it later."""
LATER_STOP = 105
STRANGER, STRANGER_STOP = "vllm-2", 32


def main() -> None:
    """Exit status 0, or 1 with the reason on standard error, or 130 when interrupted. All processes are gone then."""
    parser = argparse.ArgumentParser(prog="python -m deploy.demo")
    parser.add_argument("--keep", action="store_true", help="leave everything running until Ctrl-C")
    parser.add_argument("--port", type=int, default=0, help="the router's port; a free one when not given")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a shell may have let SIGINT be ignored
        signal.signal(number, signal.default_int_handler)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="kvroute-demo-") as folder,
            DemoProcesses(Path(folder)) as processes,
        ):
            run(processes, Path(folder), free_port(options.port), keep=options.keep)
    except DemoFailed as error:
        sys.stderr.write(f"the demo failed: {error}\n")
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def run(processes: DemoProcesses, folder: Path, port: int, *, keep: bool) -> None:
    """All scenes, within `TOTAL_S`. Raises DemoFailed. With `keep`, it goes on until Ctrl-C, which is no error then."""
    began, screen = time.monotonic(), console()
    with RouterClient(f"http://127.0.0.1:{port}") as router:
        with _time_limit():
            Demo(screen, processes, router, folder).run(port)
        screen.print(f"\nThat took {time.monotonic() - began:.1f} s.", end=" ")
        _where_to_look(screen, router.url, keep)
        with contextlib.suppress(KeyboardInterrupt):
            while keep:
                processes.check()
                time.sleep(0.5)


class Demo:
    """The scenes, in order."""

    def __init__(self, screen: Console, processes: DemoProcesses, router: RouterClient, folder: Path) -> None:
        self._screen = screen
        self._processes = processes
        self._router = router
        self._folder = folder
        self._asked: list[Asked] = []

    def run(self, port: int) -> None:
        """All of them. The router will listen on `port`. Raises DemoFailed."""
        self._start_engines()
        self._start_router(port)
        self._ask(read_prompts("first"))
        self._compute_more()
        self._ask(read_prompts("then"))
        self._show_decisions()
        self._compare_with_engines()
        self._meet_stranger()
        self._show_hit_rate()

    def _start_engines(self) -> None:
        with self._step("Starting three stand-ins for engines, which publish recorded event streams"):
            for name, engine in FLEET.items():
                self._processes.start_engine(name, RECORDINGS / f"{engine}.jsonl", MODEL)
            instances = [self._instance(name, engine) for name, engine in FLEET.items()]
        for name, seq in FIRST_STOP.items():
            self._processes.publish(name, seq)
        settings = {"log": {"format": "text"}, "instances": instances}
        self._config.write_text(yaml.safe_dump(settings, sort_keys=False))

    def _start_router(self, port: int) -> None:
        with self._step("Starting the router: kvroute serve --config fleet.yaml"):
            self._processes.start_router(self._config, port)
            self._wait(self._router.ready, "the router was not ready", START_S)
        with self._step("It learns where the events are, replays what it missed, and follows"):
            for name, seq in FIRST_STOP.items():
                self._wait_for_seq(name, seq)

    def _compute_more(self) -> None:
        with self._step(f"vllm-1 computes more: {LATER_STOP - FIRST_STOP['vllm-1']} further batches of events"):
            self._processes.publish("vllm-1", LATER_STOP)
            self._wait_for_seq("vllm-1", LATER_STOP)

    def _show_decisions(self) -> None:
        self._screen.print("\nWhere prompts go. On the right, the tokens each instance holds, by the router's index.")
        self._screen.print(decisions(self._asked, list(FLEET)))
        self._screen.print(legend(self._asked))

    def _compare_with_engines(self) -> None:
        compared = 0
        for asked in self._asked:
            for name, reused in asked.prompt.engine_reused.items():
                ours = asked.candidates[name]["reusable_tokens"]
                if ours != reused:
                    raise DemoFailed(f"{asked.prompt.about}: {ours} tokens reusable at {name}, the engine had {reused}")
                compared += 1
        self._screen.print(f"Compared with what the recorded engines reused themselves: equal in all {compared} cases.")

    def _meet_stranger(self) -> None:
        self._screen.print()
        with self._step(f"Adding {STRANGER}, whose block hashes start from another seed: POST /instances"):
            self._processes.start_engine(STRANGER, RECORDINGS / "vllm_seed_42.jsonl", MODEL)
            instance = self._instance(STRANGER, "vllm")
            self._processes.publish(STRANGER, STRANGER_STOP)
            self._router.add(instance)
            self._wait(self._stranger_is_refused, f"{STRANGER} was not refused", FOLLOW_S)
        self._screen.print(f"{STRANGER} is refused: it gets requests by load, its blocks are not indexed. Why:")
        advice = self._router.worker(STRANGER)["advice"]
        lines = textwrap.wrap(advice, self._screen.width - 4, break_on_hyphens=False)
        self._screen.out(textwrap.indent("\n".join(lines), "  "), style="yellow")

    def _show_hit_rate(self) -> None:
        reused, asked = (self._router.total(f"kvroute_{name}_tokens_total") for name in ("reusable", "prompt"))
        self._screen.print(f"\nHit rate so far: {reused:.0f} of {asked:.0f} prompt tokens ({reused / asked:.0%}).")

    @property
    def _config(self) -> Path:
        return self._folder / "fleet.yaml"

    def _instance(self, name: str, engine: str) -> dict[str, str]:
        """The settings of a started stand-in, as soon as it answers."""
        return {"id": name, "engine": engine, "model": MODEL, "url": self._processes.engine_url(name, START_S)}

    def _stranger_is_refused(self) -> bool:
        return bool(self._router.worker(STRANGER)["state"] == "refused")

    def _ask(self, prompts: list[Prompt]) -> None:
        """Route them, and report each as finished with what the engine reused (where that was recorded)."""
        for prompt in prompts:
            body = {"model": MODEL, "token_ids": prompt.token_ids, "explain": True, **prompt.fields}
            answer = self._router.route(body)
            self._asked.append(Asked(prompt, answer))
            self._router.finished(answer["request_id"], prompt.engine_reused.get(answer["instance"]))

    def _wait_for_seq(self, name: str, seq: int) -> None:
        self._wait(lambda: bool(self._router.worker(name)["seq"] == seq), f"batch {seq} of {name} did not come", 10)

    def _wait(self, true: Callable[[], bool], otherwise: str, limit_s: float) -> None:
        """As `wait_until`; at once DemoFailed when a process ends."""

        def alive_and_true() -> bool:
            self._processes.check()
            return true()

        wait_until(alive_and_true, otherwise, limit_s)

    @contextlib.contextmanager
    def _step(self, doing: str) -> Iterator[None]:
        began = time.monotonic()
        with self._screen.status(f"{doing} ...", spinner="line"):
            yield
        self._screen.print(f"{doing} ({time.monotonic() - began:.1f} s)")


def _where_to_look(screen: Console, url: str, keep: bool) -> None:
    running = "Everything runs until Ctrl-C:" if keep else "make demo ARGS=--keep leaves it all running, to look at:"
    screen.print(running)
    say = screen.out  # unwrapped, to be copied
    say(f"\n  {url}/docs       the whole interface")
    say(f"  {url}/metrics    for Prometheus")
    say("\nand to try:\n")
    say(f"  curl -s {url}/instances/{STRANGER}")
    say(f"  curl -s {url}/route -H 'Content-Type: application/json' \\")
    say("       -d @deploy/recordings/request.json")


@contextlib.contextmanager
def _time_limit() -> Iterator[None]:
    """DemoFailed from wherever the main thread is when `TOTAL_S` are over. The end of processes is not cut short."""

    def too_long(_signal: int, _frame: FrameType | None) -> NoReturn:
        raise DemoFailed(f"it did not end within {TOTAL_S} s")

    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(TOTAL_S)
    try:
        yield
    finally:
        signal.alarm(0)


if __name__ == "__main__":
    main()
