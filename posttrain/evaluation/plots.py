"""The comparison's pictures; equal entries give equal bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from posttrain.evaluation.entries import Curve, Entry
from posttrain.evaluation.statistics import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, GRID = "#333a45", "#e3e6eb"
BASELINE_COLOUR = "#7a828e"
# Okabe & Ito's palette, told apart by colour-blind readers too.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#5e4fa2")
CURVES = (
    ("rollout/reward", "reward of the samples"),
    ("train/kl", "KL to the reference"),
    ("train/loss", "loss"),
    ("train/accuracy", "preference accuracy"),
    ("train/margin", "preference margin"),
    ("rollout/length", "length of the samples"),
)
_STYLE: Any = {
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": "#b8bfc9",
    "axes.labelcolor": INK,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": GRID,
}


def colours(entries: Sequence[Entry]) -> list[str]:
    """One colour per entry: grey for baselines, the palette in order for runs."""
    runs = [entry.name for entry in entries if not entry.is_baseline]
    return [
        BASELINE_COLOUR if entry.is_baseline else COLOURS[runs.index(entry.name) % len(COLOURS)] for entry in entries
    ]


def draw_all(folder: Path, entries: Sequence[Entry]) -> list[Path]:
    """Draw every picture that the entries have numbers for; returns the files."""
    with matplotlib.rc_context(_STYLE):
        drawn = [
            _intervals(entries, "eval/reward", "Reward of held-out completions", None),
            _intervals(entries, "eval/win_rate", "Win rate against SFT", 0.5),
            _reward_kl(entries),
            _lengths(entries),
            _curves(entries),
        ]
        names = ("reward.png", "win_rate.png", "reward_kl.png", "lengths.png", "curves.png")
        return [_save(figure, folder / name) for name, figure in zip(names, drawn, strict=True) if figure]


def _intervals(entries: Sequence[Entry], metric: str, title: str, line: float | None) -> Figure | None:
    """A point and its interval for each entry, the first on top."""
    shown = [
        (entry, colour) for entry, colour in zip(entries, colours(entries), strict=True) if metric in entry.metrics
    ]
    if not shown:
        return None
    figure, (axes,) = _figure(1, height=1.1 + 0.42 * len(shown))
    for place, (entry, colour) in enumerate(shown):
        found = entry.metrics[metric]
        axes.plot([found.low, found.high], [place, place], color=colour, linewidth=2.2, solid_capstyle="round")
        axes.plot([found.value], [place], "o", color=colour, markersize=6.5)
    axes.set_yticks(range(len(shown)), [entry.name for entry, _ in shown])
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.grid(axis="x")
    if line is not None:
        axes.axvline(line, color=INK, linestyle=":", linewidth=1)
    axes.set_title(f"{title} (95 % interval)")
    return figure


def _reward_kl(entries: Sequence[Entry]) -> Figure:
    figure, (axes,) = _figure(1, height=4.0)
    for entry, colour in zip(entries, colours(entries), strict=True):
        kl, reward = entry.metrics["eval/kl"], entry.metrics["eval/reward"]
        axes.errorbar(
            kl.value,
            reward.value,
            xerr=_arms(kl),
            yerr=_arms(reward),
            fmt="o",
            color=colour,
            elinewidth=1.4,
            markersize=6.5,
        )
        axes.annotate(entry.name, (kl.value, reward.value), xytext=(7, 6), textcoords="offset points", color=colour)
    axes.set_xlabel("KL to SFT (nats per sequence)")
    axes.set_ylabel("reward")
    axes.set_title("What each run gained, and how far it moved for it")
    axes.margins(0.12)
    axes.grid()
    return figure


def _curves(entries: Sequence[Entry]) -> Figure | None:
    """A panel for each metric that any run logged in training."""
    panels = [
        (metric, title) for metric, title in CURVES if any(_drawable(entry.curves.get(metric)) for entry in entries)
    ]
    if not panels:
        return None
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure, axes = _figure(columns, rows, width=3.7 * columns, height=0.4 + 2.6 * rows)
    for place, (metric, title) in zip(axes, panels, strict=False):
        for entry, colour in zip(entries, colours(entries), strict=True):
            curve = entry.curves.get(metric)
            if curve and _drawable(curve):
                place.plot(*curve, color=colour, linewidth=1.6, label=entry.name)
        place.set_title(title)
        place.set_xlabel("step")
        place.grid()
        place.legend(frameon=False, fontsize=8.5)
    for place in axes[len(panels) :]:
        place.set_visible(False)
    return figure


def _lengths(entries: Sequence[Entry]) -> Figure:
    figure, (axes,) = _figure(1, height=1.2 + 0.42 * len(entries))
    for place, (entry, colour) in enumerate(zip(entries, colours(entries), strict=True)):
        lengths = [len(row["completion_ids"]) for row in entry.rows]
        low, lower, middle, upper, high = np.quantile(lengths, [0.05, 0.25, 0.5, 0.75, 0.95])
        axes.plot([low, high], [place, place], color=colour, linewidth=1.4)
        axes.barh(place, upper - lower, left=lower, height=0.5, color=colour)
        axes.plot([middle], [place], "|", color=INK, markersize=17, markeredgewidth=2)
    axes.set_yticks(range(len(entries)), [entry.name for entry in entries])
    axes.set_ylim(len(entries) - 0.5, -0.5)
    axes.set_xlabel("tokens (box: quartiles, black: median, line: 5 % to 95 %)")
    axes.set_title("Lengths of held-out completions")
    axes.grid(axis="x")
    return figure


def _drawable(curve: Curve | None) -> bool:
    return curve is not None and len(curve[0]) > 1 and any(math.isfinite(value) for value in curve[1])


def _arms(found: Estimate) -> list[list[float]]:
    return [[max(found.value - found.low, 0.0)], [max(found.high - found.value, 0.0)]]


def _figure(columns: int, rows: int = 1, *, height: float, width: float = 7.2) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width, height), dpi=160, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for place in axes.flat:
        place.set_axisbelow(True)
    return figure, list(axes.flat)


def _save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, format="png", metadata={"Software": None})
    return path
