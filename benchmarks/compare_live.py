"""The CPU engine against the real servers: the same requests, the same cached tokens, the same KV events.

    python -m benchmarks.compare_live --vllm http://127.0.0.1:8000 --sglang http://127.0.0.1:30000
    python -m benchmarks.compare_live --live FOLDER

Takes real servers that run (freshly started or able to empty their caches, used by nobody else, their events on), or
starts them by `FOLDER/vllm/run.sh` and `FOLDER/sglang/run.sh` (arguments: NAME PORT EVENTS_PORT REPLAY_PORT and the
server's own), ends them afterwards; KVROUTE_LIVE names the folder too. For each one a CPU engine with the same face,
block size, cache size and hash identity is started, both get the requests of `compare_asks` one after the other, and
`cached_tokens` must be equal request by request, and so must the blocks in their KV events. The CPU engine is given
the token ids that the real server's /tokenize makes of a text or a chat, and goes on from its own outputs where the
real one goes on from its own.

Prints a table for each server; exit status 1 with the differences if there are any, 2 when there is nothing to compare.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.compare_engine import ComparedEngine
from benchmarks.compare_sides import Compared, Sides
from benchmarks.compare_starts import SERVERS, started
from deploy.engine.settings import Face
from tests.support.cpu_engine import CpuEngine, cpu_engine

VLLM_SPACES = [{}, {"cache_salt": "a"}, {"cache_salt": "b"}]
SPACES: dict[Face, list[dict[str, str]]] = {
    "vllm": VLLM_SPACES,
    "sglang": [*VLLM_SPACES, {"extra_key": "a"}, {"extra_key": "k", "cache_salt": "b"}],
}


class Server(NamedTuple):
    """A real server that runs."""

    name: str
    face: Face
    url: str


def main() -> None:
    """Compare, print, exit."""
    options = _options()
    differences: list[str] = []
    for server in _running(options.vllm, options.sglang):
        differences += compare(server, options.seed, options.hash_seed)
    for start in SERVERS if options.live else ():
        with started(Path(options.live), start) as url:
            differences += compare(Server(start.name, start.face, url), options.seed, "0")
    for line in differences:
        print(line)
    sys.exit(1 if differences else 0)


def compare(server: Server, seed: int, hash_seed: str | None) -> list[str]:
    """Run all sections, print the table; the differences in words."""
    with ExitStack() as stack:
        real = stack.enter_context(closing(ComparedEngine(server.face, server.url)))
        ours = stack.enter_context(_beside(real, hash_seed))
        traits = real.traits()
        print(f"\n{server.name}: {traits.cache_tokens} tokens in blocks of {traits.block_size}")
        print(f"{'section':<24}{'requests':>9}{'prompt':>9}{'cached':>9}{'CPU':>9}  {'stored':>9}{'removed':>9}  equal")
        differences: list[str] = []
        for compared in Sides(real, ours).run(seed, SPACES[server.face]):
            _print(compared)
            differences += [f"{server.name}, {compared.section}: {words}" for words in compared.differences]
    return differences


@contextmanager
def _beside(real: ComparedEngine, hash_seed: str | None) -> Iterator[ComparedEngine]:
    """A CPU engine that is like the real one."""
    traits = real.traits()
    fields: dict[str, object] = {"block_size": traits.block_size, "cache_tokens": traits.cache_tokens}
    if real.face == "vllm":
        fields |= {"hash_algorithm": traits.hash_algorithm, "hash_seed": hash_seed}
    if traits.step_tokens is not None:
        fields |= {"step_tokens": traits.step_tokens}
    with cpu_engine(real.face, **fields) as ours, closing(_compared(real.face, ours)) as compared:
        yield compared


def _compared(face: Face, engine: CpuEngine) -> ComparedEngine:
    return ComparedEngine(face, engine.url)


def _print(one: Compared) -> None:
    verdict = "yes" if not one.differences else f"NO: {len(one.differences)}"
    events = f"{one.events.stored:>9}{one.events.removed:>9}" if one.events else f"{'-':>9}{'-':>9}"
    print(
        f"{one.section:<24}{one.requests:>9}{one.prompt:>9}{one.real:>9}{one.ours:>9}  {events}  {verdict}", flush=True
    )


def _running(vllm: str | None, sglang: str | None) -> Iterator[Server]:
    if vllm:
        yield Server(f"vLLM at {vllm}", "vllm", vllm)
    if sglang:
        yield Server(f"SGLang at {sglang}", "sglang", sglang)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks.compare_live", description=__doc__.splitlines()[0])
    parser.add_argument("--vllm", help="URL of a real vLLM")
    parser.add_argument("--sglang", help="URL of a real SGLang")
    parser.add_argument("--live", default=os.environ.get("KVROUTE_LIVE"), help="folder that starts both (KVROUTE_LIVE)")
    parser.add_argument("--hash-seed", default="0", help="the PYTHONHASHSEED that --vllm runs with (0)")
    parser.add_argument("--seed", type=int, default=1, help="of the requests (1)")
    options = parser.parse_args()
    if options.vllm or options.sglang:
        options.live = None
    elif not options.live:
        parser.error("nothing to compare with: give --vllm, --sglang or --live")
    return options


if __name__ == "__main__":
    main()
