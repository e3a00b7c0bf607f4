"""One look for all pictures. Needs the extra `bench` (matplotlib)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

COLOURS: Final = {
    "round robin": "#b5b5b5",
    "least loaded": "#7d8fa9",
    "text prefix": "#e0a458",
    "kvroute": "#2a7f62",
    "bound": "#222222",
}


def figure(width_in: float, height_in: float, columns: int = 1) -> tuple[Any, Any]:
    """A figure and its axes."""
    mpl.use("Agg")
    drawing, axes = plt.subplots(1, columns, figsize=(width_in, height_in), layout="constrained")
    for one in [axes] if columns == 1 else axes:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(axis="y", alpha=0.3)
        one.set_axisbelow(True)
    return drawing, axes


def save(drawing: Figure, path: Path) -> None:
    """As a small PNG, without the date in it: equal numbers give an equal file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(drawing)
