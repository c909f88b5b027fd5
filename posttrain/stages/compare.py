"""compare: all runs and the SFT model side by side, as tables, pictures and a page.

report.html also tells where and how long every stage ran, which differs between two equal runs: it is not among the
files whose digests stand in the manifest.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from posttrain.evaluation.comparison import Comparison, Experiment, compare
from posttrain.evaluation.entries import BASELINE, read_entries, read_records
from posttrain.evaluation.files import write_all
from posttrain.evaluation.findings import findings
from posttrain.evaluation.metrics import PAIRED
from posttrain.evaluation.summary import flag_names

if TYPE_CHECKING:
    from posttrain.stages.runner import Stage

# Inputs by the names of runs, which are free: `eval-ppo` and `run-ppo` beside `data` and `reward_model`.
_EVALUATION, _RUN = "eval-", "run-"


def run(stage: Stage) -> None:
    """Read the evaluations, compare each with SFT's, write the tables, the pictures and the page."""
    experiment = read(stage)
    comparison = compare([experiment])
    files = write_all(stage.out, experiment.name, comparison)
    track(stage, comparison, files)


def read(stage: Stage) -> Experiment:
    """The experiment behind the inputs: `eval-sft`, and `eval-<run>` with `run-<run>` for each run."""
    evaluations, runs = (_named(stage, prefix) for prefix in (_EVALUATION, _RUN))
    entries = read_entries(evaluations, runs, stage.config.evaluation.bootstrap, stage.seed)
    root = evaluations[BASELINE].resolve().parents[1]
    folders = {name: stage.inputs[name] for name in ("data", "reward_model") if name in stage.inputs}
    records = read_records(root, [entry.name for entry in entries])
    return Experiment(root.name, entries, stage.config.flags, records, folders)


def _named(stage: Stage, prefix: str) -> dict[str, Path]:
    return {name.removeprefix(prefix): path for name, path in stage.inputs.items() if name.startswith(prefix)}


def track(stage: Stage, comparison: Comparison, files: list[Path]) -> None:
    """The paired values and the flags become headlines of the runs; the files go to MLflow."""
    for entry in comparison.entries:
        if not entry.is_baseline:
            flags = comparison.flags[entry.name]
            paired = {name: found.value for name, found in entry.metrics.items() if name in PAIRED}
            stage.tracker.summary({**paired, "eval/flags": len(flags)}, run=entry.name)
            stage.tracker.tag({"flags": flag_names(flags)}, run=entry.name)
    for path in files:
        stage.tracker.artifact(path)
    for sentence in findings(comparison):
        stage.log.info("%s", sentence)
