"""What all pictures of a comparison share: type, colours, and how a figure becomes a file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.figure import Figure

from posttrain.evaluation.comparison import Subject

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

INK, SOFT, GRID, WARNING = "#1f2630", "#5b6472", "#e6e8ec", "#a3261d"
BASELINE_COLOUR = "#7a828e"
# After Okabe & Ito: told apart by colour-blind readers too; its yellow is left out, which white paper swallows.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#5e4fa2")
MARKERS = (("o", "D"), ("s", "P"), ("^", "X"), ("v", "*"))  # of a run, of a group
LINES = ("-", "--", ":", "-.")
HEAD, TAIL = 12, 9  # letters of a long name that figures show
WIDTH = 5.2  # inches, of a figure that stays readable on a phone
STYLE: Any = {
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": "#b8bfc9",
    "axes.labelcolor": SOFT,
    "axes.labelsize": 9,
    "axes.titlecolor": INK,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": "#b8bfc9",
    "xtick.labelcolor": SOFT,
    "xtick.labelsize": 9,
    "ytick.color": "#b8bfc9",
    "ytick.labelcolor": INK,
    "ytick.labelsize": 9,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "figure.constrained_layout.h_pad": 0.08,
    "figure.constrained_layout.w_pad": 0.08,
}


def style() -> Any:
    """The context in which pictures are drawn."""
    return matplotlib.rc_context(STYLE)


@dataclass(frozen=True)
class Look:
    """How a model is drawn: where the colours start again, markers (of a run, of a group) and lines differ."""

    colour: str
    markers: tuple[str, str]
    line: str


def looks(subjects: Sequence[Subject]) -> dict[str, Look]:
    """The look of every model, by its name: one for all seeds of a group, grey for baselines."""
    found: dict[str, Look] = {}
    runs = baselines = 0
    for subject in subjects:
        turn, place = (baselines, 0) if subject.is_baseline else divmod(runs, len(COLOURS))
        colour = BASELINE_COLOUR if subject.is_baseline else COLOURS[place]
        look = Look(colour, MARKERS[turn % len(MARKERS)], LINES[turn % len(LINES)])
        runs, baselines = runs + (not subject.is_baseline), baselines + subject.is_baseline
        found |= dict.fromkeys((entry.name for entry in subject.members), look)
    return found


def colours(subjects: Sequence[Subject]) -> dict[str, str]:
    """The colour of every model, by its name."""
    return {name: look.colour for name, look in looks(subjects).items()}


def labels(names: Sequence[str]) -> dict[str, str]:
    """What a figure shows for each name: a long one without its middle, of which as much stays as tells it apart."""
    return {name: _label(name, names).replace("$", r"\$") for name in names}  # $ would begin a formula


def _label(name: str, names: Sequence[str]) -> str:
    more = 0
    while any(_shortened(name, more) == _shortened(other, more) for other in names if other != name):
        more += 1
    return _shortened(name, more)


def _shortened(name: str, more: int) -> str:
    head, tail = HEAD + more, TAIL + more
    return name if len(name) <= head + tail + 1 else f"{name[:head]}\N{HORIZONTAL ELLIPSIS}{name[-tail:]}"


def new_figure(rows: int, columns: int, *, height: float, width: float = WIDTH) -> tuple[Figure, list[Axes]]:
    """A figure and its axes, row by row."""
    figure = Figure(figsize=(width, height), dpi=160, layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def legend(figure: Figure, handles: Sequence[Line2D], names: Sequence[str]) -> None:
    """A legend below all axes, in as many rows as its widest name needs, for which the figure grows."""
    widest = max(len(name) for name in names) + 7  # with its marker
    fitting = max(1, int(11 * figure.get_figwidth()) // widest)
    rows = math.ceil(len(names) / fitting)
    columns = math.ceil(len(names) / rows)
    figure.set_figheight(figure.get_figheight() + 0.2 * (rows - 1))
    figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)


def grid(panels: int) -> tuple[int, int]:
    """Rows and columns for a number of panels."""
    columns = {1: 1, 2: 2, 4: 2}.get(panels, 3)
    return math.ceil(panels / columns), columns


def save(figure: Figure, path: Path) -> Path:
    """Write a PNG without a date or a version, so that equal figures are equal bytes."""
    figure.savefig(path, format="png", metadata={"Software": None})
    return path
