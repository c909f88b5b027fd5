"""Pictures of the data card, drawn from its numbers; equal numbers give equal bytes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GRID = "#333333", "#dddddd"
COLOURS = ("#3b6ea8", "#d1793b", "#4f9a6b", "#8a5fa8", "#b0484f")


def draw_lengths(path: Path, tokens: dict[str, Any], limits: dict[str, int]) -> None:
    """Histograms of token lengths, one panel for prompts and one for completions, with the length limits.

    Args:
        tokens: the card's `tokens`.
        limits: most tokens of "prompt" and "completion".
    """
    figure, panels = _figure(columns=2)
    for axes, name, colour in zip(panels, ("prompt", "completion"), COLOURS):
        summary = tokens[name]
        if summary["count"]:
            _bars(axes, summary["histogram"], _whole_bins(summary["most"]), colour)
            axes.axvline(limits[name], color=INK, linestyle="--", linewidth=1, label=f"limit: {limits[name]}")
            axes.axvline(summary["mean"], color=INK, linestyle=":", linewidth=1, label=f"mean: {summary['mean']:.1f}")
            axes.legend(frameon=False)
        axes.set_title(f"{name.capitalize()}s ({summary['count']:,})", loc="left")
        axes.set_xlabel("tokens, start token and eos included")
    panels[0].set_ylabel("rows")
    _save(figure, path)


def draw_ratings(path: Path, ratings: dict[str, Any]) -> None:
    """Histogram of the ratings, one panel a source.

    Args:
        ratings: the card's `ratings`, with at least one source.
    """
    figure, panels = _figure(columns=len(ratings))
    for number, (axes, (name, summary)) in enumerate(zip(panels, ratings.items())):
        _bars(axes, summary["histogram"], 32, COLOURS[number % len(COLOURS)])
        axes.axvline(summary["mean"], color=INK, linestyle=":", linewidth=1, label=f"mean: {summary['mean']:.2f}")
        axes.legend(frameon=False)
        axes.set_title(f"{name} ({summary['count']:,})", loc="left", fontsize=9)
        axes.set_xlabel("rating")
    panels[0].set_ylabel("texts")
    _save(figure, path)


def _figure(columns: int) -> tuple[Figure, list[Axes]]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(5.0, 4.5 * columns), 3.6), layout="constrained")
    panels = list(figure.subplots(1, columns, squeeze=False)[0])
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
    return figure, panels


def _whole_bins(most: float) -> list[float]:
    """Edges between whole numbers, at most 64 bins of equal width."""
    width = int(most) // 64 + 1
    return [0.5 + width * step for step in range(int(most) // width + 1)] + [0.5 + width * (int(most) // width + 1)]


def _bars(axes: Axes, histogram: dict[str, Any], bins: int | list[float], colour: str) -> None:
    axes.hist(
        histogram["values"], bins=bins, weights=histogram["counts"], color=colour, edgecolor="white", linewidth=0.3
    )


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=110, metadata={"Software": None})
