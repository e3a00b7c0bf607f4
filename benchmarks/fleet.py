"""What routing is worth: a production trace over simulated fleets, five ways to route it.

    KVROUTE_TRACE=conversation_trace.jsonl python -m benchmarks.fleet [TRACE] [--requests N] [--plots docs/benchmarks]

Each engine is the CPU engine's real block pool under a cost model (`fleet_engine`); kvroute is its real index and
router (`fleet_policies`). Same trace, same costs, same seeds for all. "bound" is one engine as big and as fast as the
fleet: nothing is held twice, nobody waits beside an idle engine. With `--requests` only the trace's beginning.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.fleet_engine import Costs
from benchmarks.fleet_play import POLICIES, Result, Setting, play
from benchmarks.fleet_trace import Arrival, read_trace, trace_path

PREFILL_US: Final = 100.0
DECODE_US: Final = 20_000.0
CAPACITIES: Final = {"tight": 8_000_000, "ample": 96_000_000}
"""The fleet's KV caches together, in tokens. The trace's prompts have 94 million different ones: ample holds all."""

LOADS: Final = {"moderate": 0.175, "high": 0.25}
"""The trace's arrival rate times so much for each engine: four engines get 0.7 and 1.0 of it, eight 1.4 and 2.0."""

FLEETS: Final = (4, 8)


class Case(NamedTuple):
    """One run."""

    engines: int
    capacity: str
    load: str
    policy: str

    @property
    def setting(self) -> Setting:
        """Its numbers."""
        costs = Costs(PREFILL_US, DECODE_US, CAPACITIES[self.capacity] // self.engines)
        return Setting(self.engines, costs, LOADS[self.load] * self.engines)


CASES: Final = [
    Case(engines, capacity, load, policy)
    for load in LOADS
    for capacity in CAPACITIES
    for engines in FLEETS
    for policy in POLICIES
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, nargs="?", default=trace_path(), help="the trace (KVROUTE_TRACE)")
    parser.add_argument("--requests", type=int, help="only the first so many")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes side by side")
    parser.add_argument("--results", type=Path, help="keep results in this file; what is in it is not run again")
    parser.add_argument("--plots", type=Path, help="draw into this folder (needs the extra `bench`)")
    options = parser.parse_args()
    if not options.trace.is_file():
        sys.exit(f"{options.trace}: no such trace; give its path or set KVROUTE_TRACE")
    results = run_all(options.trace, options.requests, options.jobs, options.results)
    print(table(results))
    if options.plots is not None:
        from benchmarks.fleet_plots import draw

        draw(results, options.plots)


def run_all(trace: Path, requests: int | None, jobs: int, kept: Path | None) -> dict[Case, Result]:
    """Every case's result, with a line on stderr when one is done."""
    results = _read(kept) if kept is not None and kept.exists() else {}
    missing = [case for case in CASES if case not in results]
    with ProcessPoolExecutor(jobs) as pool:
        running = {case: pool.submit(run, trace, requests, case) for case in missing}
        for case, future in running.items():
            results[case] = future.result()
            print(f"{len(results)}/{len(CASES)} {case}", file=sys.stderr, flush=True)
            if kept is not None:
                kept.write_text(json.dumps([[*case, *result] for case, result in results.items()]))
    return {case: results[case] for case in CASES}


def run(trace: Path, requests: int | None, case: Case) -> Result:
    """One case."""
    return play(_arrivals(trace, requests), case.setting, case.policy)


@cache
def _arrivals(trace: Path, requests: int | None) -> list[Arrival]:
    return read_trace(trace, requests)


def _read(path: Path) -> dict[Case, Result]:
    width = len(Case._fields)
    return {Case(*row[:width]): Result(*row[width:]) for row in json.loads(path.read_text())}


def table(results: dict[Case, Result]) -> str:
    """All results as Markdown; the last columns say what of the aims is met."""
    lines = [
        "| engines | KV | load | policy | hit rate | TTFT mean | p50 | p90 | computed max/mean | queue max/mean "
        "| busy |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case, one in results.items():
        head = f"| {case.engines} | {case.capacity} | {case.load} " if case.policy == POLICIES[0] else "| | | "
        spread = "" if case.policy == "bound" else f"{one.compute_spread:.2f} | {one.queue_spread:.2f}"
        lines.append(
            f"{head}| {case.policy} | {one.hit_rate:.1%} | {one.ttft_mean_s:.2f} s | {one.ttft_s(50):.2f} | "
            f"{one.ttft_s(90):.2f} | {spread or '- | -'} | {one.busy:.0%} |"
        )
    return "\n".join([*lines, "", *_aims(results)])


def _aims(results: dict[Case, Result]) -> list[str]:
    lines = [
        "| engines | KV | load | hits of the bound's | p90: round robin / kvroute | text prefix / kvroute | "
        "spread against least loaded | promises kept |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in [case for case in results if case.policy == "kvroute"]:
        others = {policy: results[case._replace(policy=policy)] for policy in POLICIES}
        own = others["kvroute"]
        lines.append(
            f"| {case.engines} | {case.capacity} | {case.load} | {own.hit_rate / others['bound'].hit_rate:.1%} | "
            f"{others['round robin'].ttft_s(90) / own.ttft_s(90):.1f} x | "
            f"{others['text prefix'].ttft_s(90) / own.ttft_s(90):.1f} x | "
            f"computed {own.compute_spread / others['least loaded'].compute_spread - 1:+.1%}, "
            f"queue {own.queue_spread / others['least loaded'].queue_spread - 1:+.1%} | {own.kept:.2%} |"
        )
    return lines


if __name__ == "__main__":
    main()
