"""The live benchmark's picture. Needs the extra `bench` (matplotlib)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes

from benchmarks.live_load import Turn
from benchmarks.plot_style import COLOURS, figure, save


def draw(results: Mapping[str, Sequence[Turn]], path: Path, title: str) -> None:
    """Left: how many requests have their first token within a time. Right: delivered less promised tokens."""
    drawing, (left, right) = figure(9, 3.4, columns=2)
    for policy, turns in results.items():
        times = sorted(turn.ttft_s for turn in turns)
        shares = [100 * (number + 1) / len(times) for number in range(len(times))]
        left.step(times, shares, where="post", color=COLOURS[policy], lw=2, label=policy)
    left.set_xscale("log")
    left.set_xlabel("time to first token, seconds (log)")
    left.set_ylabel("requests, %")
    left.set_title(title)
    left.legend(fontsize=8, loc="lower right")
    differences = Counter(turn.cached - turn.promised for turn in results["kvroute"] if turn.promised is not None)
    _draw_differences(right, differences)
    save(drawing, path)


def _draw_differences(axes: Axes, differences: Counter[int]) -> None:
    widest = max(64, *(abs(one) for one in differences))
    edges = [widest * (2 * number - 21) / 21 for number in range(22)]
    axes.hist(list(differences), bins=edges, weights=list(differences.values()), color=COLOURS["kvroute"])
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.5)
    axes.set_xlabel("tokens delivered (cached) less promised (reusable)")
    axes.set_ylabel("requests (log)")
    kept = differences[0] / differences.total()
    axes.set_title(f"{kept:.1%} of {differences.total()} promises kept to the token")
