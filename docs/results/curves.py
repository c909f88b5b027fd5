"""docs/images/trl_curves.png from docs/results/curves.csv: `python docs/results/curves.py` draws it.

`python -m tests.oracles.our_curves` makes the CSV file: it trains, and takes TRL's losses from the stored ones.
"""

from __future__ import annotations

import csv
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from posttrain.evaluation.canvas import COLOURS, SOFT, legend, save, style

HERE = Path(__file__).resolve().parent
PICTURE = HERE.parent / "images" / "trl_curves.png"
TITLES = {"sft": "SFT", "reward_model": "Reward model", "dpo": "DPO", "kto": "KTO"}
OURS, THEIRS = COLOURS[0], COLOURS[4]
RANGE = (1e-9, 1e-3)  # of the differences; where there is none it is drawn at the lower end

Losses = list[float]


def read(path: Path = HERE / "curves.csv") -> dict[str, tuple[Losses, Losses]]:
    """Training -> the losses of every step, TRL's and ours."""
    found: dict[str, tuple[Losses, Losses]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            theirs, ours = found.setdefault(row["training"], ([], []))
            theirs.append(float(row["trl"]))
            ours.append(float(row["posttrain"]))
    return found


def draw(curves: dict[str, tuple[Losses, Losses]]) -> Figure:
    """For each training both curves, and under them how far they are apart."""
    figure = Figure(figsize=(7.6, 6.4), dpi=140, layout="constrained")
    axes = figure.subplots(4, 2, sharex=True, height_ratios=(2.4, 1, 2.4, 1))
    for number, (kind, (theirs, ours)) in enumerate(curves.items()):
        upper, column = 2 * (number // 2), number % 2
        lines = _overlay(axes[upper, column], theirs, ours)
        axes[upper, column].set_title(TITLES[kind])
        _differences(axes[upper + 1, column], theirs, ours)
    for row, name in enumerate(("loss", "difference") * 2):
        axes[row, 0].set_ylabel(name)
        axes[row, 0].yaxis.set_label_coords(-0.15, 0.5)
    for column in (0, 1):
        axes[3, column].set_xlabel("optimiser step")
    legend(figure, lines, ["TRL", "posttrain"])
    return figure


def _overlay(axes: Axes, theirs: Losses, ours: Losses) -> list[Line2D]:
    steps = range(1, len(ours) + 1)
    axes.grid(axis="y")
    axes.set_ylim(0, 1.08 * max(theirs))
    (wide,) = axes.plot(steps, theirs, color=THEIRS, linewidth=5, solid_capstyle="round")
    (thin,) = axes.plot(steps, ours, color=OURS, linewidth=1.3)
    return [wide, thin]


def _differences(axes: Axes, theirs: Losses, ours: Losses) -> None:
    """|ours - TRL's| of every step, and the largest of them in words."""
    found = [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
    axes.set_yscale("log")
    axes.set_ylim(RANGE[0] / 2, RANGE[1])
    axes.yaxis.set_major_locator(LogLocator(numticks=3))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(axis="y")
    shown = [max(value, RANGE[0]) for value in found]
    axes.plot(range(1, len(found) + 1), shown, ".", color=SOFT, markersize=3.5)
    axes.text(0.99, 0.96, f"at most {max(found):.1e}", transform=axes.transAxes, ha="right", va="top", fontsize=9)


if __name__ == "__main__":
    with style():
        save(draw(read()), PICTURE)
