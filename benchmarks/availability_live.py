"""Availability with the real servers: two vLLM and one SGLang that break, and what clients of a router notice of it.

    python -m benchmarks.availability_live --live FOLDER [--kinds kill,...] [--json FILE]

FOLDER has `vllm/run.sh` and `sglang/run.sh`, which start a server without a GPU: `run.sh NAME PORT EVENTS_PORT
REPLAY_PORT [arguments]`. The router is asked directly, and engines are tried as a gateway does: one that fails before
it answers is reported and the router asked again without it. Figures and exit status as of `benchmarks.availability`;
while the only SGLang is away its clients wait. Then adapters are loaded and unloaded at run time. Takes ten minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import aiohttp

from benchmarks.availability_faults import Faults, Watch
from benchmarks.availability_load import Asked, BadAnswer, Load, Said, read_answer
from benchmarks.availability_lora import Adapters
from benchmarks.availability_proxy import HOST, Arrival
from benchmarks.availability_verdict import Run, printed, table, totals
from deploy.ports import taken_ports
from tests.support.ports import free_ports
from tests.support.router_process import RouterProcess

KILL, CORE_DEAD, HANG_ALL, HANG_HTTP, HANG_CORE = "kill", "core dead", "hang all", "hang HTTP", "hang core"
MEANINGS: Final = {
    KILL: "kill -9 of the process group, then started again",
    CORE_DEAD: "kill -9 of the engine core (vLLM) or scheduler (SGLang) alone, then started again",
    HANG_ALL: "SIGSTOP of the process group, then SIGCONT",
    HANG_HTTP: "SIGSTOP of the API server alone, then SIGCONT",
    HANG_CORE: "SIGSTOP of the engine core or scheduler alone, then SIGCONT; not among the default ones",
}
DEFAULT_KINDS: Final = (KILL, CORE_DEAD, HANG_ALL, HANG_HTTP)
CORES: Final = {"vllm": "VLLM::EngineCore", "sglang": "sglang::scheduler"}
MODELS: Final = {"vllm": "tiny", "sglang": "tiny-sglang"}
BROKEN_S: Final = 6.0
PAUSE_S: Final = 3.0
START_S: Final = 400.0
ENDED_S: Final = 20.0
TRIES: Final = 3
WAIT_S: Final = 0.2
NOTICED_S: Final = 2.0
"""A server may answer for so long before its script says so."""
COMMON: Final = {
    "vllm": {
        "PYTHONHASHSEED": "0",
        "HASH_ALGO": "sha256_cbor",
        "MODEL_NAME": MODELS["vllm"],
        "FAKE_PREFILL_US": "50",
        "FAKE_DECODE_US": "5000",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "WAIT": str(int(START_S)),
    },
    "sglang": {
        "SGL_SIM_MODEL": "fake",
        "SGL_SIM_PREFILL_US": "50",
        "SGL_SIM_DECODE_US": "5000",
        "SGL_WAIT": str(int(START_S)),
    },
}
ARGUMENTS: Final = {
    "vllm": ("--enable-lora", "--max-lora-rank", "8"),
    "sglang": ("--served-model-name", MODELS["sglang"], "--page-size", "16"),
}
SGLANG_LORA: Final = ("--enable-lora", "--max-lora-rank", "8", "--lora-target-modules", "q_proj", "v_proj")
"""Not among the default arguments: SGLang's LoRA pins memory, which a torch without an accelerator refuses."""


@dataclass(eq=False)
class LiveEngine:
    """A real server, started by the scripts in `scripts`; its logs and process ids are in `folder`."""

    name: str
    face: str
    scripts: Path
    folder: Path
    arguments: tuple[str, ...]
    port: int = field(default_factory=free_ports)
    _events: int = field(default_factory=free_ports)
    _replay: int = field(default_factory=free_ports)

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://{HOST}:{self.port}"

    def settings(self) -> dict[str, Any]:
        """What the router is told."""
        return {"id": self.name, "engine": self.face, "model": MODELS[self.face], "url": self.url}

    def kinds(self) -> list[str]:
        """All."""
        return list(MEANINGS)

    def broken_for(self, kind: str, random: Random) -> float:
        """In seconds."""
        return BROKEN_S

    async def start(self) -> None:
        """Until it answers. RuntimeError when it does not."""
        ports = (self.port, self._events, self._replay)
        end = time.monotonic() + ENDED_S
        while any(taken_ports(port, 1) for port in ports) and time.monotonic() < end:  # noqa: ASYNC110  (rare)
            await asyncio.sleep(0.1)  # the process before it has not quite gone
        await run_script(self.scripts, self.face, self.folder, self.name, *map(str, ports), *self.arguments)

    async def break_it(self, kind: str) -> None:
        """Begin the fault."""
        match kind:
            case "kill":
                self.kill()
            case "core dead":
                os.kill(self._core(), signal.SIGKILL)
            case "hang all":
                os.killpg(self._pid(), signal.SIGSTOP)
            case "hang HTTP":
                os.kill(self._pid(), signal.SIGSTOP)
            case "hang core":
                os.kill(self._core(), signal.SIGSTOP)

    async def heal(self, kind: str) -> None:
        """End it."""
        match kind:
            case "kill" | "core dead":
                self.kill()
                await self.start()
            case "hang all":
                os.killpg(self._pid(), signal.SIGCONT)
            case "hang HTTP":
                os.kill(self._pid(), signal.SIGCONT)
            case "hang core":
                os.kill(self._core(), signal.SIGCONT)

    def kill(self) -> None:
        """The whole process group, if there is one."""
        try:
            os.killpg(self._pid(), signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            return
        (self.folder / self.name / "pid").unlink()

    def _pid(self) -> int:
        return int((self.folder / self.name / "pid").read_text())

    def _core(self) -> int:
        """The child that computes, by its title. ProcessLookupError when there is none."""
        parent = self._pid()
        for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            if CORES[self.face] in Path(f"/proc/{child}/cmdline").read_text():
                return int(child)
        raise ProcessLookupError(f"{self.name} has no {CORES[self.face]}")


async def run_script(scripts: Path, face: str, folder: Path, *arguments: str) -> None:
    """Run a face's script to its end. RuntimeError when it fails."""
    log = folder / f"{face}-{arguments[0]}.script"
    with log.open("ab") as out:
        process = await asyncio.create_subprocess_exec(
            str(scripts / face / "run.sh"),
            *arguments,
            cwd=folder,  # a module in the current folder could hide one of the server's
            env=os.environ | COMMON[face] | {"RUN_DIR": str(folder), "SGL_RUN": str(folder)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        if await process.wait() != 0:
            raise RuntimeError(f"{face} {' '.join(arguments)}:\n{log.read_text()[-2000:]}")


@asynccontextmanager
async def zygote(scripts: Path, folder: Path) -> AsyncIterator[None]:
    """SGLang imported once: its servers are forked from that and start in seconds."""
    print("importing SGLang ...", flush=True)
    try:
        await run_script(scripts, "sglang", folder, "zygote")
        yield
    finally:
        await run_script(scripts, "sglang", folder, "stop", "zygote")


@dataclass(frozen=True)
class Direct:
    """A `Sender` that asks the router at `router` and goes to the engine itself; `arrivals` are what it sent, by id."""

    router: str
    arrivals: dict[str, list[Arrival]]

    async def send(self, http: aiohttp.ClientSession, asked: Asked, path: str, body: dict[str, Any]) -> Said:
        """Up to TRIES engines. While the router has none, it waits."""
        failed: list[str] = []
        while True:
            route = await self._route(http, body, failed)
            if route is None:
                await asyncio.sleep(WAIT_S)
                failed.clear()
                continue
            asked.instance, asked.promised = route["instance"], route["reusable_tokens"]
            try:
                return await self._answer(http, asked, route, path, body)
            except (aiohttp.ClientError, TimeoutError, BadAnswer) as error:
                failed.append(route["url"])
                await self._report(http, route["request_id"], _kind(error))
                if asked.first_s is not None or len(failed) >= TRIES:
                    raise

    async def _route(
        self, http: aiohttp.ClientSession, body: dict[str, Any], failed: Sequence[str]
    ) -> dict[str, Any] | None:
        """None for 503: no engine can take it."""
        question = {name: body[name] for name in ("model", "prompt", "messages", "max_tokens") if name in body}
        async with http.post(f"{self.router}/route", json=question | {"exclude": list(failed)}) as answer:
            if answer.status == 503:
                return None
            if answer.status != 200:
                raise BadAnswer(f"the router: status {answer.status}: {(await answer.text())[:200]}")
            route: dict[str, Any] = await answer.json()
            return route | {"instance": answer.headers["x-kvroute-instance"]}

    async def _answer(
        self, http: aiohttp.ClientSession, asked: Asked, route: dict[str, Any], path: str, body: dict[str, Any]
    ) -> Said:
        arrival = Arrival("POST", path, asked.request_id, time.monotonic())
        self.arrivals[route["instance"]].append(arrival)
        try:
            async with http.post(f"{route['url']}{path}", json=body, headers=route.get("headers")) as answer:
                said = await read_answer(answer, asked)
        finally:
            arrival.done_s = time.monotonic()
        await self._report(http, route["request_id"], None)
        return said

    async def _report(self, http: aiohttp.ClientSession, request_id: str, error: dict[str, Any] | None) -> None:
        report = {} if error is None else {"error": error}
        async with http.post(f"{self.router}/requests/{request_id}/finished", json=report) as answer:
            await answer.read()


def _kind(error: Exception) -> dict[str, Any]:
    """What the router is told of a failure."""
    if isinstance(error, BadAnswer) and (status := str(error).partition("status ")[2][:3]).isdigit():
        return {"kind": "status", "status": int(status)}
    if isinstance(error, aiohttp.ClientConnectorError):
        return {"kind": "connect"}
    return {"kind": "timeout" if isinstance(error, TimeoutError) else "aborted"}


@dataclass(frozen=True)
class Options:
    """What to run. `adapters`: the faces that load them."""

    scripts: Path
    kinds: list[str]
    adapters: list[str]
    seed: int


class Seen(NamedTuple):
    """What came out. `adapters`: what is measured of adapters, by step, and what of it must not be."""

    run: Run
    adapters: list[dict[str, Any]]
    problems: list[str]


async def measured(options: Options) -> Seen:
    """Start everything, break things, load adapters, end everything."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvroute-live-")))
        await stack.enter_async_context(zygote(options.scripts, folder))
        engines = [await stack.enter_async_context(_ended(engine)) for engine in _engines(options, folder)]
        for engine in engines:  # one after the other: each needs a core while it starts
            print(f"starting {engine.name} ...", flush=True)
            await engine.start()
        settings = {"instances": [engine.settings() for engine in engines], "log": {"level": "warning"}}
        router = stack.enter_context(RouterProcess(settings))
        await asyncio.to_thread(router.wait_until_ready)
        url = str(router.http.base_url).rstrip("/")
        run = await _broken(engines, url, options)
        loading = [one for one in engines if one.face in options.adapters]
        steps = await Adapters(url, loading, folder / "adapters").run()
        return Seen(run, steps, [step["problem"] for step in steps if step["problem"]])


async def _broken(engines: Sequence[LiveEngine], router: str, options: Options) -> Run:
    """Each kind of fault on a vLLM and on the SGLang, while clients ask for both models."""
    watch = Watch([router], list(MODELS.values()))
    arrivals: dict[str, list[Arrival]] = {engine.name: [] for engine in engines}
    faults = Faults(engines, watch, Random(options.seed), 0.0, options.kinds)
    loads = [Load(Direct(router, arrivals), 2, options.seed, model) for model in MODELS.values()]
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(watch.run())
        running = [group.create_task(load.run()) for load in loads]
        for kind in options.kinds:
            for engine in (engines[0], engines[-1]):
                await asyncio.sleep(PAUSE_S)
                await faults.make(engine, kind)
        await asyncio.sleep(PAUSE_S)
        for load in loads:
            load.stop()
        await asyncio.gather(*running)
        watching.cancel()
    asked = [one for load in loads for one in load.asked]
    return Run(faults.made, asked, arrivals, time.monotonic() - began, NOTICED_S)


def _engines(options: Options, folder: Path) -> list[LiveEngine]:
    sglang = ARGUMENTS["sglang"] + (SGLANG_LORA if "sglang" in options.adapters else ())
    engines = [LiveEngine(f"vllm-{n}", "vllm", options.scripts, folder, ARGUMENTS["vllm"]) for n in (0, 1)]
    return [*engines, LiveEngine("sglang-0", "sglang", options.scripts, folder, sglang)]


@asynccontextmanager
async def _ended(engine: LiveEngine) -> AsyncIterator[LiveEngine]:
    try:
        yield engine
    finally:
        engine.kill()


def main() -> None:
    """Run, print, exit."""
    options = _options()
    kinds, faces = _listed(options.kinds, list(MEANINGS)), _listed(options.adapters, list(MODELS))
    try:
        seen = asyncio.run(measured(Options(Path(options.live), kinds, faces, options.seed)))
    except KeyboardInterrupt:
        sys.exit("ended before its time; all processes are gone")
    rows, total = table(seen.run, kinds), totals(seen.run)
    problems = (seen.run.problems() if kinds else []) + seen.problems
    print()
    for line in printed(rows):
        print(line)
    for name, value in total.items():
        print(f"{name}: {value}")
    for step in seen.adapters:
        print(step)
    print(f"\n{len(problems)} problems" if problems else "\nas it must be")
    for problem in problems:
        print(f"- {problem}")
    if options.json is not None:
        found = {"table": rows, "totals": total, "adapters": seen.adapters, "problems": problems}
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    sys.exit(1 if problems else 0)


def _listed(text: str, known: Sequence[str]) -> list[str]:
    """The names in an option."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"{unknown[0]!r} is none of {', '.join(known)}")
    return names


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.availability_live",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="faults: " + "; ".join(f"{kind}: {meaning}" for kind, meaning in MEANINGS.items()),
    )
    add = parser.add_argument
    add("--live", default=os.environ.get("KVROUTE_LIVE"), help="folder that starts both (KVROUTE_LIVE)")
    add("--kinds", default=",".join(DEFAULT_KINDS), help=f"faults, with commas ({','.join(DEFAULT_KINDS)})")
    add("--adapters", default="vllm", help="faces that load adapters, with commas (vllm); '' for none")
    add("--seed", type=int, default=0, help="of the requests (0)")
    add("--json", type=Path, help="write the figures into this file")
    options = parser.parse_args()
    if not options.live:
        parser.error("say with --live where the scripts are that start the servers")
    return options


if __name__ == "__main__":
    main()
