"""Pictures of the data card, drawn from its numbers; equal numbers give equal bytes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GRID = "#333333", "#dddddd"
COLOURS = ("#3b6ea8", "#d1793b", "#4f9a6b", "#8a5fa8", "#b0484f")


def draw_lengths(path: Path, tokens: dict[str, Any], limits: dict[str, int], cut: dict[str, int]) -> None:
    """Histograms of token lengths, one panel for prompts and one for completions, with the length limits.

    Args:
        tokens: the card's `tokens`.
        limits: most tokens of "prompt" and "completion".
        cut: how many of "prompts" and "completions" are cut at their limit.
    """
    figure, panels = _figure(columns=2)
    for axes, name, colour in zip(panels, limits, COLOURS, strict=False):
        summary, lost = tokens[name], cut[f"{name}s"]
        _bars(axes, summary["histogram"], colour)
        _mark(axes, limits[name], "--", f"limit {limits[name]}" + (f" ({lost:,} cut)" if lost else ""))
        _mark(axes, summary["mean"], ":", f"mean {summary['mean']:.1f}")
        _caption(axes, f"{name.capitalize()}s ({summary['count']:,})", "tokens, start token and eos included")
    panels[0].set_ylabel("rows")
    _save(figure, path)


def draw_ratings(path: Path, ratings: dict[str, Any]) -> None:
    """Histogram of the ratings, one panel a source.

    Args:
        ratings: the card's `ratings`, with at least one source.
    """
    figure, panels = _figure(columns=len(ratings))
    for number, (axes, (name, summary)) in enumerate(zip(panels, ratings.items(), strict=True)):
        _bars(axes, summary["histogram"], COLOURS[number % len(COLOURS)])
        _mark(axes, summary["mean"], ":", f"mean {summary['mean']:.2f}")
        _caption(axes, f"{_short(name)} ({summary['count']:,})", "rating")
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


def _bars(axes: Axes, histogram: dict[str, Any], colour: str) -> None:
    edges = histogram["edges"]
    width = edges[1] - edges[0]
    axes.bar(edges[:-1], histogram["counts"], width, align="edge", color=colour, edgecolor="white", linewidth=0.4)


def _mark(axes: Axes, value: float, style: str, label: str) -> None:
    axes.axvline(value, color=INK, linestyle=style, linewidth=1, label=label)


def _caption(axes: Axes, title: str, unit: str) -> None:
    axes.set_title(title, loc="left", fontsize=10, pad=24)
    axes.set_xlabel(unit)
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 0.99), ncols=2, frameon=False, fontsize=8)


def _short(name: str) -> str:
    return name if len(name) <= 40 else f"...{name[-37:]}"


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=110, metadata={"Software": None})
