"""Live: CPU engines and the real router over HTTP, round robin against kvroute.

    python -m benchmarks.live [--compute timed|torch] [--engines 3] [--seconds 40] [--plots docs/benchmarks]

The same conversations (`live_load`) go to fresh engines twice. Measured by the client: time to first token, with the
question to the router in it; by the engines: cached tokens. Each request's cached_tokens is compared with what the
router promised for it (reusable_tokens) while others were under way. First tokens and ends are reported to the
router. `timed` engines wait as long as the configured costs say; `torch` engines compute.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any, Final, NamedTuple

from benchmarks.live_fleet import START_S, running_engines
from benchmarks.live_load import MODEL, Client, Session, Turn, sessions
from tests.support.router_process import RouterProcess

COSTS: Final = ("--prefill-us", "200", "--decode-us", "5000")
"""Timed engines: 5,000 prompt tokens a second, so that a prompt without hits takes some tenths of a second."""


class Defaults(NamedTuple):
    """What suits two cores. `cache_tokens` is per engine; `rate` in conversations a second."""

    engines: int
    rate: float
    cache_tokens: int


DEFAULTS: Final = {"timed": Defaults(3, 3.0, 24_576), "torch": Defaults(2, 0.6, 24_576)}


def main() -> None:
    options = _options()
    own = DEFAULTS[options.compute]
    engines, rate = options.engines or own.engines, options.rate or own.rate
    begun = sessions(options.seed, options.seconds, rate)
    arguments = ["--face", options.face, "--compute", options.compute, "--cache-tokens", str(own.cache_tokens)]
    arguments += ["--block-size", "16", *(COSTS if options.compute == "timed" else ())]
    print(f"{engines} engines: {' '.join(arguments)}; {len(begun)} conversations in {options.seconds:g} s")
    results: dict[str, list[Turn]] = {}
    for policy in ("round robin", "kvroute"):
        results[policy] = measured(engines, arguments, begun, routed=policy == "kvroute")
        print(f"{policy:12}{_line(results[policy], engines)}", flush=True)
    print(delivery(results["kvroute"]))
    if options.plots is not None:
        from benchmarks.live_plots import draw

        draw(results, options.plots / f"live_{options.compute}.png", f"{engines} CPU engines, {options.compute}")


def measured(engines: int, arguments: Sequence[str], begun: Sequence[Session], *, routed: bool) -> list[Turn]:
    """The conversations' turns on fresh engines, through a fresh router if `routed`."""
    with running_engines(engines, arguments) as urls:
        if not routed:
            return asyncio.run(Client(urls, None).play(begun))
        with RouterProcess(_fleet(urls, arguments[1])) as router:
            router.wait_until_ready()
            router.wait(lambda: all(one["state"] == "live" for one in router.instances().values()), START_S)
            return asyncio.run(Client(urls, str(router.http.base_url).rstrip("/")).play(begun))


def _fleet(urls: Sequence[str], face: str) -> dict[str, Any]:
    instances = [
        {"id": f"engine-{number}", "engine": face, "model": MODEL, "url": url} for number, url in enumerate(urls)
    ]
    return {"instances": instances, "log": {"level": "error"}}


def _line(turns: Sequence[Turn], engines: int) -> str:
    cuts = quantiles([turn.ttft_s for turn in turns], n=100, method="inclusive")
    hits = sum(turn.cached for turn in turns) / sum(turn.prompt for turn in turns)
    computed: Counter[int] = Counter()
    for turn in turns:
        computed[turn.engine] += turn.prompt - turn.cached
    spread = max(computed.values()) * engines / computed.total()
    return (
        f"{len(turns)} requests, hit rate {hits:.1%}, TTFT mean {fmean(turn.ttft_s for turn in turns):.3f} s, "
        f"p50 {cuts[49]:.3f}, p90 {cuts[89]:.3f}, computed tokens max/mean {spread:.2f}"
    )


def delivery(turns: Sequence[Turn]) -> str:
    """Delivered against predicted, in words."""
    differences = [turn.cached - turn.promised for turn in turns if turn.promised is not None]
    kept = differences.count(0) / len(differences)
    less, more = (sum(sign * one > 0 for one in differences) for sign in (-1, 1))
    return (
        f"reusable_tokens = cached_tokens for {kept:.1%} of {len(differences)} requests under load; less delivered "
        f"{less} times (at worst {min(0, *differences)} tokens), more {more} times (at most {max(0, *differences)})"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compute", choices=list(DEFAULTS), default="timed")
    parser.add_argument("--face", choices=["vllm", "sglang"], default="vllm")
    parser.add_argument("--engines", type=int, help="3 timed, 2 torch")
    parser.add_argument("--seconds", type=float, default=40.0, help="during which conversations begin")
    parser.add_argument("--rate", type=float, help="conversations that begin per second")
    parser.add_argument("--seed", type=int, default=0, help="of the conversations")
    parser.add_argument("--plots", type=Path, help="draw into this folder (needs the extra `bench`)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
