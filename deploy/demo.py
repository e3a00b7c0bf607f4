"""The demo: a real router, three CPU engines, and what cache-aware routing is worth on this machine.

python -m deploy.demo [--keep] [--port PORT]
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.console import Console

from deploy.demo_client import RouterClient
from deploy.demo_processes import DemoFailed, DemoProcesses, free_port
from deploy.demo_scenes import STRANGER, Scenes
from deploy.demo_table import console

TOTAL_S = 60


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
        with _time_limit(), contextlib.closing(Scenes(screen, processes, router, folder)) as scenes:
            scenes.run(port)
            opening = scenes.opening()
        screen.print(f"\nThat took {time.monotonic() - began:.1f} s.", end=" ")
        _where_to_look(screen, router.url, port, opening, keep=keep)
        with contextlib.suppress(KeyboardInterrupt):
            while keep:
                processes.check()
                time.sleep(0.5)


def _where_to_look(screen: Console, url: str, port: int, opening: str, *, keep: bool) -> None:
    again = f'make demo ARGS="--keep --port {port}" leaves it all running, to look at:'
    screen.print("Everything runs until Ctrl-C:" if keep else again)
    say = screen.out  # unwrapped, to be copied
    say(f"\n  {url}/docs            the whole interface, as a page that needs the internet")
    say(f"  {url}/openapi.json    the same as JSON")
    say(f"  {url}/metrics         for Prometheus")
    say("\nand to try:\n")
    say(f"  curl -s {url}/instances/{STRANGER}")
    say(f"  curl -s {url}/route -H 'Content-Type: application/json' \\")
    say(f"""       -d '{{"model": "tiny", "prompt": "{opening}", "explain": true}}'""")
    say("\n(that is how one of the documents begins, so it goes where that is cached)")


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
