"""Availability: engines that break one after the other, and what clients behind the gateway notice of it.

    python -m benchmarks.availability [--seconds 180] [--seed 0] [--fault-every 10] [--json FILE]

Three CPU engines (two vLLM faces, one SGLang face) behind proxies, real routers, the shipped nginx gateway, and clients
that go on asking. Every few seconds one engine breaks in one of seven ways and is healed some seconds later. Printed by
kind of fault: how long until the routers leave the engine out, until it is in again, until it gets its last request;
what clients saw; and whether a router promised more reuse than the engine delivered. Exit status 1 when a client saw an
error of a request that the broken engine was not answering, a request went to an engine more than 3 s after its fault,
or a promise was not kept. Needs nginx and libnginx-mod-http-js. Everything runs on 127.0.0.1, on free ports.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from benchmarks.availability_engines import MEANINGS, FaultyEngine, Kind
from benchmarks.availability_faults import Faults, Watch
from benchmarks.availability_load import Gateway, Load
from benchmarks.availability_verdict import Run, printed, table, totals
from tests.deploy.gateway.nginx_process import INSTALL, IS_INSTALLED, PATIENT, NginxProcess
from tests.deploy.gateway.stack import addresses, urls
from tests.support.router_process import RouterProcess

FACES: Final = {"vllm-0": "vllm", "vllm-1": "vllm", "sglang-0": "sglang"}
READY_S: Final = 60.0


@dataclass(frozen=True)
class Options:
    """What to run."""

    seconds: float
    seed: int
    fault_every_s: float
    clients: int
    routers: int
    kinds: list[str]
    patient: bool
    logs: Path | None = None


async def measured(options: Options) -> Run:
    """Start everything, break things, end everything."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvroute-availability-")))
        engines = [await stack.enter_async_context(_engine(name, face, folder)) for name, face in FACES.items()]
        await asyncio.gather(*(engine.start() for engine in engines))
        settings = {"instances": [engine.settings() for engine in engines], "log": {"level": "warning"}}
        routers = [stack.enter_context(RouterProcess(settings)) for _ in range(options.routers)]
        await asyncio.to_thread(_wait, routers)
        names = addresses(urls(routers), [engine.url for engine in engines])
        gateway = stack.enter_context(NginxProcess(names, changes=PATIENT if options.patient else {}))
        run = await _broken(options, engines, [url.rstrip("/") for url in urls(routers)], gateway.url)
        if options.logs is not None:
            _keep_logs(options.logs, folder, routers, gateway)
        return run


async def _broken(options: Options, engines: list[FaultyEngine], routers: list[str], gateway: str) -> Run:
    """Load and faults for so many seconds."""
    watch = Watch(routers)
    faults = Faults(engines, watch, Random(options.seed), options.fault_every_s, options.kinds)
    load = Load(Gateway(gateway), options.clients, options.seed)
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(watch.run())
        loading = group.create_task(load.run())
        await faults.run(began + options.seconds)
        await asyncio.sleep(max(0.0, began + options.seconds - time.monotonic()))
        load.stop()
        await loading
        watching.cancel()
    arrivals = {engine.name: engine.proxy.arrivals for engine in engines}
    return Run(faults.made, load.asked, arrivals, time.monotonic() - began)


@asynccontextmanager
async def _engine(name: str, face: str, folder: Path) -> AsyncIterator[FaultyEngine]:
    with (folder / f"{name}.log").open("ab") as log:
        engine = FaultyEngine(name, face, log)
        try:
            yield engine
        finally:
            engine.close()
            await engine.proxy.close()


def _wait(routers: list[RouterProcess]) -> None:
    for one in routers:
        one.wait_until_ready()
        one.wait(lambda one=one: all(i["state"] == "live" for i in one.instances().values()), READY_S)  # type: ignore[misc]


def _keep_logs(into: Path, folder: Path, routers: list[RouterProcess], gateway: NginxProcess) -> None:
    into.mkdir(parents=True, exist_ok=True)
    for log in folder.glob("*.log"):
        shutil.copy(log, into)
    for number, one in enumerate(routers):
        (into / f"router-{number}.log").write_text(one.log())
    (into / "gateway.log").write_text(gateway.log())


async def _until_signalled(options: Options) -> Run:
    """Ctrl-C and SIGTERM end it, and with it all processes."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await measured(options)


def main() -> None:
    """Run, print, exit."""
    options = _options()
    if not IS_INSTALLED:
        sys.exit(INSTALL)
    try:
        run = asyncio.run(_until_signalled(options.options))
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit("ended before its time; all processes are gone")
    rows, total, problems = table(run, [kind.value for kind in Kind]), totals(run), run.problems()
    print()
    for line in printed(rows):
        print(line)
    print()
    for name, value in total.items():
        print(f"{name}: {value}")
    print(f"\n{len(problems)} problems" if problems else "\nas it must be")
    for problem in problems[: options.most]:
        print(f"- {problem}")
    if options.json is not None:
        options.json.write_text(json.dumps({"table": rows, "totals": total, "problems": problems}, indent=2) + "\n")
    sys.exit(1 if problems else 0)


class _CommandLine(NamedTuple):
    options: Options
    json: Path | None
    most: int


def _options() -> _CommandLine:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.availability",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="faults: " + "; ".join(f"{kind.value}: {meaning}" for kind, meaning in MEANINGS.items()),
    )
    add = parser.add_argument
    add("--seconds", type=float, default=180.0, help="how long the clients ask (180)")
    add("--seed", type=int, default=0, help="of the faults, the engines they hit, and the requests (0)")
    add("--fault-every", type=float, default=10.0, help="seconds from one fault to the next (10)")
    add("--clients", type=int, default=4, help="conversations at a time (4)")
    add("--routers", type=int, choices=(1, 2), default=1, help="routers behind the gateway (1)")
    add("--kinds", type=_kinds, default=[kind.value for kind in Kind], help="faults to draw from, with commas (all)")
    add("--patient", action="store_true", help="the gateway waits seconds for a router: for a machine that is loaded")
    add("--json", type=Path, help="write the figures into this file")
    add("--logs", type=Path, help="keep the logs of all processes in this folder")
    add("--problems", type=int, default=40, help="how many problems to print (40)")
    given = parser.parse_args()
    values = (given.seconds, given.seed, given.fault_every, given.clients, given.routers, given.kinds, given.patient)
    return _CommandLine(Options(*values, given.logs), given.json, given.problems)


def _kinds(text: str) -> list[str]:
    known = [kind.value for kind in Kind]
    wanted = [name.strip() for name in text.split(",")]
    if unknown := [name for name in wanted if name not in known]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
    return wanted


if __name__ == "__main__":
    main()
