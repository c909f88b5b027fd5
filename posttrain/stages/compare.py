"""compare: all runs and the SFT model side by side, as a table, pictures and a page.

report.html also tells where and how long every stage ran, which differs between two equal runs: it is not among the
files whose digests stand in the manifest.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from posttrain.evaluation.entries import BASELINE, Entry, read_entries, read_records
from posttrain.evaluation.metrics import PAIRED
from posttrain.evaluation.plots import draw_all
from posttrain.evaluation.report import Material, findings, write_report
from posttrain.evaluation.summary import write_summary

if TYPE_CHECKING:
    from posttrain.stages.runner import Stage

_RUN = "run-"  # the input `run-ppo` is the folder of the run whose evaluation is the input `ppo`


def run(stage: Stage) -> None:
    """Read the evaluations, compare each with SFT's, write the table, the pictures and the page."""
    entries = read(stage)
    experiment = stage.inputs[BASELINE].resolve().parents[1]
    write_summary(stage.out / "summary.csv", entries)
    plots = draw_all(stage.out, entries)
    records = read_records(experiment, [entry.name for entry in entries])
    write_report(
        stage.out / "report.html", Material(experiment.name, entries, plots, records, stage.inputs.get("data"))
    )
    track(stage, entries, [stage.out / "summary.csv", stage.out / "report.html", *plots])


def read(stage: Stage) -> list[Entry]:
    """The entries behind the inputs: `sft`, and `<run>` with `run-<run>` for each run."""
    runs = {name.removeprefix(_RUN): path for name, path in stage.inputs.items() if name.startswith(_RUN)}
    evaluations = {name: path for name, path in stage.inputs.items() if name == BASELINE or name in runs}
    return read_entries(evaluations, runs, stage.config.evaluation.bootstrap, stage.seed)


def track(stage: Stage, entries: list[Entry], files: list[Path]) -> None:
    """The paired values become headline values of the runs; the files go to MLflow."""
    for entry in entries:
        paired = {name: found.value for name, found in entry.metrics.items() if name in PAIRED}
        if paired:
            stage.tracker.summary(paired, run=entry.name)
    for path in files:
        stage.tracker.artifact(path)
    for sentence in findings(entries):
        stage.log.info("%s", sentence)
