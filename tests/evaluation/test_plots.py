"""What the pictures show, read back from the figures."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from posttrain.config.schema import Flags
from posttrain.evaluation import plots
from posttrain.evaluation.canvas import BASELINE_COLOUR, COLOURS, colours, labels, looks
from posttrain.evaluation.comparison import Comparison, Experiment, Subject, compare
from tests.evaluation import fake

RUNS = {"dpo": ("dpo", -0.5), "ppo-0": ("ppo", 1.0), "ppo-1": ("ppo", 0.6)}
NAMES = ["sft", "dpo", "ppo"]


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    root = tmp_path_factory.mktemp("results") / "x"
    fake.experiment(root, RUNS, seeds={"ppo-0": 0, "ppo-1": 1})
    return fake.comparison(root)


@pytest.fixture
def drawn(comparison: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Figure]:
    found: dict[str, Figure] = {}
    monkeypatch.setattr(plots, "save", lambda figure, path: found.setdefault(path.name, figure) and path)
    plots.draw_all(tmp_path, comparison)
    return found


def points(axes: Axes, marker: str) -> list[tuple[float, float]]:
    lines = [line for line in axes.lines if line.get_marker() == marker]
    return [(float(x), float(y)) for line in lines for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)]


def texts(axes: Axes) -> list[str]:
    return [label.get_text() for label in axes.get_yticklabels()]


def test_a_row_for_each_run_or_group(drawn: dict[str, Figure], comparison: Comparison) -> None:
    judge, reward = drawn["gains.png"].axes
    for axes, metric in ((judge, "eval/judge_gain"), (reward, "eval/reward_gain")):
        values = {entry.name: entry.metrics[metric].value for entry in comparison.entries[1:]}
        assert texts(axes) == ["dpo", "ppo"]
        assert points(axes, "D")[0][0] == pytest.approx(statistics.fmean([values["ppo-0"], values["ppo-1"]]))
        assert {x for x, _ in points(axes, "o")} == {values["dpo"], values["ppo-0"], values["ppo-1"]}
    assert texts(drawn["win_rate.png"].axes[0]) == ["dpo", "ppo"] and texts(drawn["lengths.png"].axes[0]) == NAMES


def test_the_interval_is_drawn_as_it_is(drawn: dict[str, Figure], comparison: Comparison) -> None:
    gain = comparison.entries[1].metrics["eval/judge_gain"]
    bars = [tuple(line.get_xdata()) for line in drawn["gains.png"].axes[0].lines if len(line.get_xdata()) == 2]
    assert (gain.low, gain.high) in bars


def test_thresholds_are_lines(comparison: Comparison, drawn: dict[str, Figure]) -> None:
    panels = {axes.get_title("left"): axes for axes in drawn["limits.png"].axes if axes.get_visible()}
    assert list(panels) == ["Distinct-2", "Perplexity", "Repetition", "KL", "Length"]
    for title, threshold in (
        ("Distinct-2", 0.9),
        ("Perplexity", 1.25),
        ("Repetition", 0.05),
        ("KL", 25),
        ("Length", 1.5),
    ):
        dashed = [line.get_xdata()[0] for line in panels[title].lines if line.get_linestyle() == "--"]
        assert dashed == [threshold]
        low, high = panels[title].get_xlim()
        assert low <= threshold <= high
    sft, dpo = (entry.metrics["eval/perplexity"].value for entry in comparison.entries[:2])
    assert points(panels["Perplexity"], "o")[0][0] == pytest.approx(dpo / sft)


def test_a_threshold_that_is_off_has_no_line(comparison: Comparison, tmp_path: Path) -> None:
    experiment = comparison.experiments[0]
    off = Flags(**dict.fromkeys(["least_distinct_2", "most_kl", "most_length", "most_perplexity", "most_repetition"]))
    figure = plots._limits(compare([Experiment(experiment.name, experiment.entries, off)]))
    assert figure is not None
    assert not [line for axes in figure.axes for line in axes.lines if line.get_linestyle() == "--"]


def test_a_threshold_may_be_zero(comparison: Comparison) -> None:
    experiment = comparison.experiments[0]
    zero = compare([Experiment(experiment.name, experiment.entries, Flags(most_repetition=0.0))])
    figure = plots._limits(zero)
    assert figure is not None
    panel = next(axes for axes in figure.axes if "Repetition" in (axes.get_title(), axes.get_title("left")))
    assert [line.get_xdata()[0] for line in panel.lines if line.get_linestyle() == "--"] == [0.0]


def test_end_points_and_paths_of_reward_against_kl(drawn: dict[str, Figure], comparison: Comparison) -> None:
    (axes,) = drawn["reward_kl.png"].axes
    sft, dpo = ((e.metrics["eval/kl"].value, e.metrics["eval/reward"].value) for e in comparison.entries[:2])
    assert {sft, dpo} <= set(points(axes, "o"))
    paths = [line for line in axes.lines if len(line.get_xdata()) == 40]
    assert len(paths) == 2, "of the two runs that sample"
    kl = [0.1 * step for step in range(1, 41)]
    assert paths[0].get_xdata()[-1] == pytest.approx(statistics.fmean(kl[-4:]))
    assert [text.get_text() for text in drawn["reward_kl.png"].legends[0].texts] == NAMES


def test_curves_are_those_of_the_files(drawn: dict[str, Figure]) -> None:
    panels = {axes.get_title("left"): axes for axes in drawn["curves.png"].axes if axes.get_visible()}
    assert list(panels) == ["Reward of the samples", "KL to SFT, nats per sequence", "Loss"]
    assert len(panels["Loss"].lines) == 3 and len(panels["Reward of the samples"].lines) == 2
    assert list(panels["Loss"].lines[0].get_ydata()) == [1 / step for step in range(1, 41)]
    assert [text.get_text() for text in drawn["curves.png"].legends[0].texts] == ["dpo", "ppo"]


def test_the_lengths_are_those_of_all_rows(drawn: dict[str, Figure], comparison: Comparison) -> None:
    (axes,) = drawn["lengths.png"].axes
    assert len(axes.patches) == 3
    highest = 0.0
    for place, (patch, entries) in enumerate(
        zip(axes.patches, (comparison.entries[:1], comparison.entries[1:2], comparison.entries[2:]), strict=True)
    ):
        lengths = [len(row["completion_ids"]) for entry in entries for row in entry.rows]
        tops, edges, floor = patch.get_data()
        assert edges[0] < min(lengths) and edges[-1] > max(lengths)
        heights = floor - tops
        counted = [sum(low < n < high for n in lengths) for low, high in itertools.pairwise(edges)]
        assert list(heights / sum(heights)) == pytest.approx([count / len(lengths) for count in counted])
        assert place < floor < place + 1 and heights.max() <= 0.8 + 1e-9
        highest = max(highest, heights.max())
    assert highest == pytest.approx(0.8)


def test_many_lengths_share_bins(comparison: Comparison) -> None:
    entry = comparison.entries[0]
    rows = [{**row, "completion_ids": [1] * (1 + 7 * i)} for i, row in enumerate(entry.rows)]
    figure = plots._lengths(compare([Experiment("x", [dataclasses.replace(entry, rows=rows)], Flags())]))
    tops, edges, _ = figure.axes[0].patches[0].get_data()
    assert len(tops) <= 41 and edges[-1] > 7 * 127 + 1


def test_a_colour_means_the_same_everywhere(comparison: Comparison, drawn: dict[str, Figure]) -> None:
    found = colours(comparison.subjects())
    assert found == {"sft": BASELINE_COLOUR, "dpo": COLOURS[0], "ppo-0": COLOURS[1], "ppo-1": COLOURS[1]}
    for figure in drawn.values():
        used = {line.get_color() for axes in figure.axes for line in axes.lines if line.get_marker() in ("o", "D")}
        assert used <= {BASELINE_COLOUR, *COLOURS[:2]}


def test_long_names_lose_their_middle_and_stay_apart() -> None:
    long = [f"a-very-long-name-of-an-experiment/{letter * 20}-with-kl-0.05" for letter in "xyy"]
    long[2] = long[2].replace("yyyy-", "yyyz-")
    found = labels(["ppo", *long, "price$a$b", "another-name-that-is-long"])
    assert found["ppo"] == "ppo" and found["price$a$b"] == r"price\$a\$b"
    assert found["another-name-that-is-long"] == "another-name\u2026t-is-long"
    shown = [found[name] for name in long]
    assert len(set(shown)) == 3 and all("\u2026" in each and len(each) < 50 for each in shown)
    for name in long:
        head, tail = found[name].split("\u2026")
        assert name.startswith(head) and name.endswith(tail)


def test_legends_pair_long_names_with_their_markers(comparison: Comparison, tmp_path: Path) -> None:
    entries = [dataclasses.replace(entry, name=f"{i}-{entry.name}" * 12) for i, entry in enumerate(comparison.entries)]
    long = compare([Experiment("x", [dataclasses.replace(e, recipe=e.name) for e in entries], Flags())])
    for figure in (plots._reward_kl(long), plots._curves(long)):
        assert figure is not None
        (legend,) = figure.legends
        look = looks(long.subjects())
        wanted = {labels([e.name for e in entries])[name]: each.colour for name, each in look.items()}
        assert all(
            wanted[text.get_text()] == line.get_color()
            for text, line in zip(legend.texts, legend.get_lines(), strict=True)
        )
        figure.canvas.draw()
        box = legend.get_window_extent()
        assert box.x0 >= 0 and box.x1 <= figure.bbox.x1


def test_more_than_eight_runs_differ_by_marker_and_line(comparison: Comparison) -> None:
    entry = comparison.entries[1]
    many = [Subject(f"r{i}", [dataclasses.replace(entry, name=f"r{i}")]) for i in range(20)]
    assert len(set(looks(many).values())) == 20
    seeds = [dataclasses.replace(entry, name=f"{m}-{s}", recipe=m, seeds=(s, 0)) for m in "abcd" for s in range(3)]
    grouped = compare([Experiment("x", [comparison.entries[0], *seeds], Flags())]).subjects()
    assert len(set(colours(grouped).values())) == 5
    baselines = [Subject(f"b{i}", [dataclasses.replace(comparison.entries[0], name=f"b{i}")]) for i in range(3)]
    assert len({look.markers for look in looks(baselines).values()}) == 3
