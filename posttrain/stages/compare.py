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

# Inputs by the names of runs, which are free: `eval-ppo` and `run-ppo` beside `data`.
_EVALUATION, _RUN = "eval-", "run-"


def run(stage: Stage) -> None:
    """Read the evaluations, compare each with SFT's, write the table, the pictures and the page."""
    entries = read(stage)
    experiment = stage.inputs[_EVALUATION + BASELINE].resolve().parents[1]
    write_summary(stage.out / "summary.csv", entries)
    plots = draw_all(stage.out, entries)
    records = read_records(experiment, [entry.name for entry in entries])
    write_report(
        stage.out / "report.html", Material(experiment.name, entries, plots, records, stage.inputs.get("data"))
    )
    track(stage, entries, [stage.out / "summary.csv", stage.out / "report.html", *plots])


def read(stage: Stage) -> list[Entry]:
    """The entries behind the inputs: `eval-sft`, and `eval-<run>` with `run-<run>` for each run."""
    evaluations, runs = (_named(stage, prefix) for prefix in (_EVALUATION, _RUN))
    return read_entries(evaluations, runs, stage.config.evaluation.bootstrap, stage.seed)


def _named(stage: Stage, prefix: str) -> dict[str, Path]:
    return {name.removeprefix(prefix): path for name, path in stage.inputs.items() if name.startswith(prefix)}


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
