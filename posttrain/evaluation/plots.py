"""The comparison's pictures; equal comparisons give equal bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from posttrain.evaluation.canvas import (
    INK,
    WARNING,
    WIDTH,
    Look,
    colours,
    grid,
    labels,
    legend,
    looks,
    new_figure,
    save,
    style,
)
from posttrain.evaluation.comparison import Comparison, Subject
from posttrain.evaluation.entries import Curve, Entry
from posttrain.evaluation.flags import LIMITS, Limit
from posttrain.evaluation.seeds import over_seeds
from posttrain.evaluation.statistics import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

CURVES = (
    ("rollout/reward", "reward of the samples"),
    ("rollout/kl", "KL to SFT, nats per sequence"),
    ("train/loss", "loss"),
    ("train/accuracy", "preference accuracy"),
    ("train/margin", "preference margin"),
    ("rollout/length", "tokens of a sample"),
)
_PATH = ("rollout/kl", "rollout/reward")  # what an online run logs at every step
_LENGTH_BINS = 40  # at most
_SEED_DROP = 0.26  # of a row: how far below the group's mean its seeds stand


def draw_all(folder: Path, comparison: Comparison) -> list[Path]:
    """Draw every picture that the comparison has numbers for; returns the files."""
    drawings: dict[str, Callable[[Comparison], Figure | None]] = {
        "gains.png": _gains,
        "reward_kl.png": _reward_kl,
        "win_rate.png": _win_rate,
        "lengths.png": _lengths,
        "limits.png": _limits,
        "curves.png": _curves,
    }
    files = []
    with style():
        for name, draw in drawings.items():
            figure = draw(comparison)
            if figure:
                files.append(save(figure, folder / name))
    return files


# --- rows: one per model or group of seeds ---------------------------------------------------------------------------


def _labels(comparison: Comparison) -> dict[str, str]:
    return labels([subject.name for subject in comparison.subjects()])


def _rows_of(axes: Axes, comparison: Comparison, subjects: Sequence[Subject], names: bool = True) -> None:
    """A row for each subject, the first on top."""
    shown = _labels(comparison)
    axes.set_yticks(range(len(subjects)), [shown[subject.name] for subject in subjects] if names else [])
    axes.set_ylim(len(subjects) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")


def _interval(axes: Axes, place: float, found: Estimate, colour: str, marker: str = "o") -> None:
    axes.plot([found.low, found.high], [place, place], color=colour, linewidth=2.4, solid_capstyle="round")
    axes.plot([found.value], [place], marker, color=colour, markersize=7, markeredgecolor="white", markeredgewidth=0.9)


def _row(axes: Axes, place: int, subject: Subject, colour: str, found: Sequence[Estimate]) -> None:
    """One model's value and interval; or a group's mean and interval over seeds, and below it each seed's value."""
    if subject.group is None:
        _interval(axes, place, found[0], colour)
        return
    _interval(axes, place - 0.08, over_seeds([each.value for each in found]), colour, "D")
    below = [place + _SEED_DROP] * len(found)
    axes.plot([each.value for each in found], below, "o", color=colour, markersize=4, alpha=0.55, markeredgewidth=0)


def _panel(axes: Axes, comparison: Comparison, subjects: Sequence[Subject], metric: str) -> None:
    colour = colours(comparison.subjects())
    for place, subject in enumerate(subjects):
        found = [entry.metrics[metric] for entry in subject.members if metric in entry.metrics]
        if len(found) == len(subject.members):
            _row(axes, place, subject, colour[subject.members[0].name], found)
    _rows_of(axes, comparison, subjects)


def _having(comparison: Comparison, metric: str) -> list[Subject]:
    return [s for s in comparison.subjects() if any(metric in entry.metrics for entry in s.members)]


def _gains(comparison: Comparison) -> Figure | None:
    titles = {"eval/judge_gain": "Gain by the independent judge", "eval/reward_gain": "Gain by the reward model"}
    panels = [(metric, title) for metric, title in titles.items() if _having(comparison, metric)]
    if not panels:
        return None
    rows = max(len(_having(comparison, metric)) for metric, _ in panels)
    figure, axes = new_figure(len(panels), 1, height=len(panels) * (0.95 + 0.36 * rows))
    for place, (metric, title) in zip(axes, panels, strict=True):
        shown = _having(comparison, metric)
        _panel(place, comparison, shown, metric)
        place.axvline(0, color=INK, linewidth=1)
        place.set_title(title)
        place.set_xlabel("difference to SFT on the same prompts")
    return figure


def _win_rate(comparison: Comparison) -> Figure | None:
    shown = _having(comparison, "eval/win_rate")
    if not shown:
        return None
    figure, (axes,) = new_figure(1, 1, height=0.95 + 0.36 * len(shown))
    _panel(axes, comparison, shown, "eval/win_rate")
    axes.axvline(0.5, color=INK, linewidth=1)
    axes.set_title(f"Win rate against SFT, by the {_by(shown)}")
    axes.set_xlabel("share of prompts")
    return figure


def _by(subjects: Sequence[Subject]) -> str:
    """Who says which completion wins."""
    judged = {entry.judge is not None for subject in subjects for entry in subject.members}
    return "judge or reward model" if len(judged) > 1 else "judge" if judged == {True} else "reward model"


# --- limits ----------------------------------------------------------------------------------------------------------


def _limits(comparison: Comparison) -> Figure | None:
    """A panel for each threshold: how far every run is from it."""
    shown = [subject for subject in comparison.subjects() if not subject.is_baseline]
    panels = [limit for limit in LIMITS if any(limit.metric in entry.metrics for s in shown for entry in s.members)]
    if not shown or not panels:
        return None
    lines, columns = grid(len(panels))
    figure, axes = new_figure(lines, columns, height=lines * (0.95 + 0.32 * len(shown)), width=2 * WIDTH)
    for number, (place, limit) in enumerate(zip(axes, panels, strict=False)):
        _limit(place, comparison, shown, limit, names=number % columns == 0)
    for place in axes[len(panels) :]:
        place.set_visible(False)
    return figure


def _limit(axes: Axes, comparison: Comparison, shown: Sequence[Subject], limit: Limit, names: bool) -> None:
    colour = colours(comparison.subjects())
    for place, subject in enumerate(shown):
        found = [_relative(comparison, entry, limit) for entry in subject.members]
        known = [each for each in found if each is not None]
        if len(known) == len(found):
            _row(axes, place, subject, colour[subject.members[0].name], known)
    _rows_of(axes, comparison, shown, names)
    found_in = [limit.threshold(experiment.limits) for experiment in comparison.experiments]
    thresholds = sorted({threshold for threshold in found_in if threshold is not None})
    for threshold in thresholds:
        axes.axvline(threshold, color=WARNING, linewidth=1.2, linestyle=(0, (4, 3)))
    neutral = {"ratio": 1.0, "difference": 0.0, "alone": 0.0}[limit.relation]
    axes.axvline(neutral, color="#b8bfc9", linewidth=1)
    low, high = axes.get_xlim()
    if len(thresholds) == 1:  # the side on which a run is flagged
        edge, room = thresholds[0], 0.08 * (high - low)
        side = (min(low, edge - room), edge) if limit.least else (edge, max(high, edge + room))
        axes.axvspan(*side, color=WARNING, alpha=0.06, linewidth=0)
        axes.set_xlim(min(low, side[0]), max(high, side[1]))
    axes.set_title(limit.label[0].upper() + limit.label[1:])
    unit = {"ratio": "times SFT's", "difference": "more than SFT's", "alone": limit.unit.strip()}[limit.relation]
    axes.set_xlabel(unit)


def _relative(comparison: Comparison, entry: Entry, limit: Limit) -> Estimate | None:
    """A run's interval as the threshold sees it; SFT's own uncertainty is not in it."""
    base = comparison.baseline(entry).metrics.get(limit.metric)
    found = entry.metrics.get(limit.metric)
    if base is None or found is None:
        return None
    value, low, high = (limit.relative(x, base.value) for x in (found.value, found.low, found.high))
    return Estimate(value, low, high, found.n) if all(map(math.isfinite, (value, low, high))) else None


# --- the others ------------------------------------------------------------------------------------------------------


def _reward_kl(comparison: Comparison) -> Figure:
    figure, (axes,) = new_figure(1, 1, height=4.4)
    subjects = comparison.subjects()
    look = looks(subjects)
    ends = [_end_point(axes, subject, look[subject.members[0].name]) for subject in subjects]
    axes.set_xlabel("KL to SFT (nats per sequence)")
    axes.set_ylabel("reward")
    axes.set_title("Reward, and the distance gone for it")
    axes.margins(0.08)
    axes.grid()
    shown = _labels(comparison)
    legend(figure, ends, [shown[subject.name] for subject in subjects])
    return figure


def _end_point(axes: Axes, subject: Subject, look: Look) -> Line2D:
    """Where a model or a group ended, with intervals and, for runs that sample, the way there; returns the marker."""
    colour = look.colour
    for entry in subject.members:
        _path(axes, entry, look)
    found = [[entry.metrics[metric] for entry in subject.members] for metric in ("eval/kl", "eval/reward")]
    values = [[each.value for each in estimates] for estimates in found]
    kl, reward = (over_seeds(each) for each in values) if subject.group else (estimates[0] for estimates in found)
    if subject.group:
        axes.plot(*values, "o", color=colour, markersize=4, alpha=0.55, markeredgewidth=0)
    axes.plot([kl.low, kl.high], [reward.value] * 2, color=colour, linewidth=1.5)
    axes.plot([kl.value] * 2, [reward.low, reward.high], color=colour, linewidth=1.5)
    marker = look.markers[subject.group is not None]
    (line,) = axes.plot(kl.value, reward.value, marker, color=colour, markersize=7, markeredgecolor="white")
    return line


def _path(axes: Axes, entry: Entry, look: Look) -> None:
    """How an online run went there: reward against KL of its own samples, means over a tenth of the steps."""
    kl, reward = (entry.curves.get(metric) for metric in _PATH)
    if not (_drawable(kl) and _drawable(reward)) or kl is None or reward is None:
        return
    at = dict(zip(*reward, strict=True))
    points = np.array([(x, at[step]) for step, x in zip(*kl, strict=True) if step in at])
    window = max(1, len(points) // 10)
    smooth = [points[max(0, end - window) : end].mean(axis=0) for end in range(1, len(points) + 1)]
    axes.plot(*np.transpose(smooth), look.line, color=look.colour, linewidth=1.3, alpha=0.4, zorder=1)


def _curves(comparison: Comparison) -> Figure | None:
    """A panel for each metric that any run logged in training."""
    panels = [
        (metric, title)
        for metric, title in CURVES
        if any(_drawable(entry.curves.get(metric)) for entry in comparison.entries)
    ]
    if not panels:
        return None
    lines, columns = grid(len(panels))
    figure, axes = new_figure(lines, columns, height=0.5 + 2.35 * lines, width=2 * WIDTH)
    handles: dict[str, Line2D] = {}
    for place, (metric, title) in zip(axes, panels, strict=False):
        handles |= _lines(place, comparison, metric)
        place.set_title(title[0].upper() + title[1:])
        place.set_xlabel("step")
        place.grid()
    for place in axes[len(panels) :]:
        place.set_visible(False)
    names = [subject.name for subject in comparison.subjects() if subject.name in handles]
    shown = _labels(comparison)
    legend(figure, [handles[name] for name in names], [shown[name] for name in names])
    return figure


def _lines(axes: Axes, comparison: Comparison, metric: str) -> dict[str, Line2D]:
    """Each run's curve, runs of one group in one colour; returns a line for each subject."""
    subjects = comparison.subjects()
    handles: dict[str, Line2D] = {}
    look = looks(subjects)
    for subject in subjects:
        for entry in subject.members:
            curve = entry.curves.get(metric)
            if curve and _drawable(curve):
                (line,) = axes.plot(
                    *curve,
                    look[entry.name].line,
                    color=look[entry.name].colour,
                    linewidth=1.1 if subject.group else 1.6,
                )
                handles[subject.name] = line
    return handles


def _lengths(comparison: Comparison) -> Figure:
    """A histogram for each subject, scaled to the highest bar of all; a group's runs together."""
    subjects = comparison.subjects()
    colour = colours(subjects)
    lengths = [[len(row["completion_ids"]) for entry in s.members for row in entry.rows] for s in subjects]
    first, last = min(map(min, lengths)), max(map(max, lengths))
    edges = np.arange(first, last + 2, math.ceil((last - first + 1) / _LENGTH_BINS)) - 0.5
    edges = np.append(edges, last + 0.5) if edges[-1] < last else edges
    shares = [np.histogram(each, edges, weights=np.full(len(each), 1 / len(each)))[0] for each in lengths]
    figure, (axes,) = new_figure(1, 1, height=0.95 + 0.5 * len(subjects))
    for place, (subject, share, each) in enumerate(zip(subjects, shares, lengths, strict=True)):
        paint = colour[subject.members[0].name]
        floor = place + 0.38
        axes.stairs(floor - 0.8 * share / np.max(shares), edges, baseline=floor, fill=True, color=paint, alpha=0.85)
        axes.plot([np.median(each)], [floor], "^", color=INK, markersize=5, clip_on=False)
    _rows_of(axes, comparison, subjects)
    axes.set_xlabel("tokens, terminator included (\u25b2 median)")
    axes.set_title("Length of held-out completions")
    return figure


def _drawable(curve: Curve | None) -> bool:
    return curve is not None and len(curve[0]) > 1 and any(math.isfinite(value) for value in curve[1])
