"""The fleet benchmark's pictures: hit rates, and how long a first token takes. Needs the extra `bench` (matplotlib)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes

from benchmarks.fleet_play import POLICIES, Result
from benchmarks.plot_style import COLOURS, figure, save

ROUTED: Final = [policy for policy in POLICIES if policy != "bound"]


def draw(results: Mapping[Any, Result], folder: Path) -> None:
    """fleet_hit_rate.png and fleet_ttft.png."""
    settings = list(dict.fromkeys((case.engines, case.capacity, case.load) for case in results))
    names = [f"{engines} engines\n{capacity}\n{load}" for engines, capacity, load in settings]
    by_setting = {
        policy: [results[case] for case in results if case.policy == policy]  # in the order of the settings
        for policy in POLICIES
    }
    _draw_hit_rates(names, by_setting, folder)
    _draw_ttfts(names, by_setting, folder)


def _draw_hit_rates(names: list[str], by_setting: Mapping[str, list[Result]], folder: Path) -> None:
    drawing, axes = figure(9, 3.6)
    _bars(axes, names, {policy: [100 * one.hit_rate for one in by_setting[policy]] for policy in ROUTED})
    for position, one in enumerate(by_setting["bound"]):
        axes.hlines(100 * one.hit_rate, position - 0.44, position + 0.44, colors=COLOURS["bound"], lw=1.5)
    axes.plot([], [], color=COLOURS["bound"], lw=1.5, label="bound: one cache of the fleet's size")
    axes.set_ylabel("prompt tokens found in cache, %")
    axes.set_title("Fleet hit rate")
    axes.legend(fontsize=8, ncols=3, loc="upper left")
    axes.set_ylim(0, 1.35 * 100 * max(one.hit_rate for one in by_setting["bound"]))
    save(drawing, folder / "fleet_hit_rate.png")


def _draw_ttfts(names: list[str], by_setting: Mapping[str, list[Result]], folder: Path) -> None:
    drawing, axes = figure(9, 3.6)
    _bars(axes, names, {policy: [one.ttft_s(90) for one in by_setting[policy]] for policy in ROUTED})
    axes.set_yscale("log")
    axes.set_ylabel("seconds (log)")
    axes.set_title("Time to first token, 90th percentile")
    axes.legend(fontsize=8, ncols=4, loc="upper left")
    axes.set_ylim(1.0, 2.5 * axes.get_ylim()[1])  # all pictures from one second up: bars of a log scale have no zero
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    save(drawing, folder / "fleet_ttft.png")


def _bars(axes: Axes, names: list[str], heights: Mapping[str, list[float]]) -> None:
    width = 0.8 / len(heights)
    for number, (policy, values) in enumerate(heights.items()):
        places = [position + (number - (len(heights) - 1) / 2) * width for position in range(len(names))]
        axes.bar(places, values, width * 0.94, color=COLOURS[policy], label=policy)
    axes.set_xticks(range(len(names)), names, fontsize=8)
