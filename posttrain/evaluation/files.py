"""The files of a comparison."""

from __future__ import annotations

from pathlib import Path

from posttrain.evaluation.comparison import Comparison
from posttrain.evaluation.plots import draw_all
from posttrain.evaluation.report import write_report
from posttrain.evaluation.seeds import write_seeds
from posttrain.evaluation.summary import columns_of, write_summary


def write_all(folder: Path, title: str, comparison: Comparison) -> list[Path]:
    """Write the tables, the pictures and the page into `folder`; returns the files."""
    summary, seeds, page = (folder / name for name in ("summary.csv", "seeds.csv", "report.html"))
    write_summary(summary, comparison.entries, comparison.flags)
    write_seeds(seeds, comparison.groups, columns_of(comparison.entries))
    plots = draw_all(folder, comparison)
    write_report(page, title, comparison, plots)
    return [summary, seeds, page, *plots]
