"""How the index grows with the fleet: `python -m benchmarks.growth [--plot FILE]` (the plot needs the extra `bench`).

Native core, each case in a process of its own. vLLM: 64, 256 and 1,024 workers with 10,000 and 100,000 blocks of 16
tokens each, as far as a case is expected to stay under 12 GB: microseconds per match of 512 blocks that one worker
holds and that all hold, blocks applied per CPU-second, resident bytes per (worker, block), milliseconds to clear one
worker, and the longest that applying one batch of 512 blocks took; ratios to the smallest case. SGLang at page size 1:
a match of 8,192 tokens that all slots hold to different depths, 64, 256 and 1,024 slots.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks.radix_match import fleet
from benchmarks.readings import resident, us_per_call
from benchmarks.workload import BLOCK, worker_named
from index.event import BlockStored, EngineHash, EventBatch
from index.index import Index
from index.native import chosen
from index.pool import WorkerSpec
from index.prompt import Prompt
from index.worker import EngineKind, Worker

SIZES = (64, 256, 1024)
RUN, PROMPT = 512, 8192
EXPECTED_BYTES, LIMIT_BYTES = 90, 12e9
"""Per (worker, block), with room for tables that have just doubled; what one case may take."""


class Row(NamedTuple):
    """What one case measured."""

    workers: int
    blocks: int
    one_us: float
    all_us: float
    blocks_per_s: float
    bytes_each: float
    clear_ms: float
    longest_ms: float


def main() -> None:
    """Measure every case, print, plot."""
    print(f"load average {os.getloadavg()[0]:.1f}")
    rows = []
    for blocks in (10_000, 100_000):
        for workers in SIZES:
            if workers * blocks * EXPECTED_BYTES > LIMIT_BYTES:
                print(f"{workers:>5} workers x {blocks:>7,}: left out, it may need more than 12 GB")
                continue
            rows.append(Row(workers, blocks, *_child("vllm", workers, blocks)[2:]))
            _show(rows[-1], rows[0])
    pages = [_child("sglang", slots, 0)[0] for slots in SIZES]
    for slots, spent in zip(SIZES, pages, strict=True):
        print(
            f"SGLang, page size 1, {slots:>5} slots: match 8,192 tokens {spent:6.1f} us; ratio {spent / pages[0]:.2f}"
        )
    if "--plot" in sys.argv:
        _plot(rows, pages, Path(sys.argv[sys.argv.index("--plot") + 1]))


def _show(row: Row, first: Row) -> None:
    print(
        f"{row.workers:>5} workers x {row.blocks:>7,}: match {row.one_us:6.1f} us (one holds; ratio "
        f"{row.one_us / first.one_us:.2f}), {row.all_us:7.1f} us (all hold; {row.all_us / first.all_us:.2f}); "
        f"{row.blocks_per_s / 1e6:5.2f} M blocks/CPU-s ({row.blocks_per_s / first.blocks_per_s:.2f}); "
        f"{row.bytes_each:5.1f} bytes each; clear {row.clear_ms:6.1f} ms; longest batch {row.longest_ms:6.1f} ms",
        flush=True,
    )


def _child(*case: object) -> list[float]:
    command = [sys.executable, "-m", "benchmarks.growth", "--case", *map(str, case)]
    numbers: list[float] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=900).stdout)
    return numbers


def _vllm(workers: int, blocks: int) -> Row:
    index, dice, before = Index(chosen("native")), random.Random(1), resident()
    names = [worker_named(number) for number in range(workers)]
    for name in names:
        index.add(name, WorkerSpec("m", EngineKind.VLLM))
    common, spent, longest, last = _run(dice), 0.0, 0.0, _run(dice)
    for name in names:
        for number in range(blocks // RUN):
            last = _run(dice) if number else common
            began = time.process_time()
            index.apply(name, EventBatch(1.0, [last], 0))
            took = time.process_time() - began
            spent, longest = spent + took, max(longest, took)
    count, only = workers * (blocks // RUN * RUN), set(names)
    held = (resident() - before) / count
    one_us = _us(lambda: index.match("m", Prompt(last.tokens), only), 1)
    all_us = _us(lambda: index.match("m", Prompt(common.tokens), only), workers)
    began = time.perf_counter()
    index.clear(names[0])
    clear_ms = (time.perf_counter() - began) * 1e3
    return Row(workers, blocks, one_us, all_us, count / spent, held, clear_ms, longest * 1e3)


def _run(dice: random.Random) -> BlockStored:
    hashes: list[EngineHash] = [dice.getrandbits(63) for _ in range(RUN)]
    return BlockStored(hashes, None, dice.randbytes(RUN * BLOCK * 4), BLOCK)


def _us(match: Callable[[], dict[Worker, object]] | Callable[[], object], holders: int) -> float:
    found = match()
    assert isinstance(found, dict)
    assert len([one for one in found.values() if one.matched == RUN * BLOCK]) == holders
    return us_per_call(match, 5, 100, time.perf_counter)


def _sglang(slots: int) -> list[float]:
    dice = random.Random(2)
    tokens = array("I", [dice.getrandbits(17) for _ in range(PROMPT)])
    index, prompt, everyone = fleet(chosen("native"), tokens, slots, 1), tokens.tobytes(), (1 << slots) - 1
    return [us_per_call(lambda: index.match(prompt, [""], everyone), 5, 100, time.perf_counter)]


def _plot(rows: list[Row], pages: list[float], path: Path) -> None:
    from benchmarks.plot_style import figure, save

    drawing, axes = figure(11, 3.4, 3)
    for blocks, mark in ((10_000, "o-"), (100_000, "s--")):
        some = [row for row in rows if row.blocks == blocks]
        sizes = [row.workers for row in some]
        axes[0].plot(sizes, [row.one_us for row in some], mark, label=f"one holds, {blocks:,} blocks")
        axes[0].plot(sizes, [row.all_us for row in some], mark, label=f"all hold, {blocks:,} blocks")
        axes[1].plot(sizes, [row.blocks_per_s / 1e6 for row in some], mark, label=f"{blocks:,} blocks each")
        axes[2].plot(sizes, [row.bytes_each for row in some], mark, label=f"{blocks:,} blocks each")
    axes[0].plot(SIZES, pages, "^:", label="SGLang, 8,192 tokens")
    titles = ("match 512 blocks, us", "applied, million blocks per CPU-second", "resident bytes per (worker, block)")
    for one, title in zip(axes, titles, strict=True):
        one.set(xscale="log", title=title, xlabel="workers", xticks=SIZES, xticklabels=SIZES)
        one.minorticks_off()
        one.legend(fontsize=7, frameon=False)
    axes[0].set_yscale("log")
    for one in axes[1:]:
        one.set_ylim(bottom=0)
    save(drawing, path)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--case"]:
        case, workers, blocks = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
        print(json.dumps(_vllm(workers, blocks) if case == "vllm" else _sglang(workers)))
    else:
        main()
