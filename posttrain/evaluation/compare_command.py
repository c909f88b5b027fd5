"""`posttrain compare A B ...`: the comparison of any experiments' folders, outside of the workflow."""

from __future__ import annotations

import argparse
from pathlib import Path

from posttrain.errors import UserError
from posttrain.evaluation.entries import Entry, Record, read_entries, read_records
from posttrain.evaluation.plots import draw_all
from posttrain.evaluation.report import Material, findings, write_report
from posttrain.evaluation.summary import write_summary


def main(argv: list[str]) -> int:
    """Write summary.csv, report.html and the pictures. Every run is measured against its own folder's SFT model."""
    parser = argparse.ArgumentParser(prog="posttrain compare", description="Compare the runs of finished experiments.")
    parser.add_argument("folders", nargs="+", type=Path, metavar="RESULTS", help="such as results/quick")
    parser.add_argument("--output", type=Path, default=Path("comparison"), help="folder to write (comparison)")
    parser.add_argument("--bootstrap", type=int, default=1000, help="resamples of the intervals (1000)")
    parser.add_argument("--seed", type=int, default=0, help="of the resamples (0)")
    options = parser.parse_args(argv)
    entries: list[Entry] = []
    records: list[Record] = []
    for folder in options.folders:
        prefix = f"{folder.resolve().name}/" if len(options.folders) > 1 else ""
        found = _read(folder, prefix, options.bootstrap, options.seed)
        entries += found
        records += read_records(folder, [entry.name.removeprefix(prefix) for entry in found])
    options.output.mkdir(parents=True, exist_ok=True)
    write_summary(options.output / "summary.csv", entries)
    plots = draw_all(options.output, entries)
    title = ", ".join(folder.resolve().name for folder in options.folders)
    data = options.folders[0] / "data" if len(options.folders) == 1 else None
    write_report(options.output / "report.html", Material(title, entries, plots, records, data))
    print(*findings(entries), f"{options.output / 'report.html'} is written", sep="\n")
    return 0


def _read(folder: Path, prefix: str, resamples: int, seed: int) -> list[Entry]:
    evaluations = {path.parent.name: path.parent for path in sorted(folder.glob("eval/*/manifest.json"))}
    if not evaluations:
        raise UserError(
            f"{folder} has no finished evaluation (eval/*/manifest.json); name an experiment's results folder"
        )
    runs = {name: folder / "runs" / name for name in evaluations if (folder / "runs" / name / "manifest.json").exists()}
    return read_entries(evaluations, runs, resamples, seed, prefix)
