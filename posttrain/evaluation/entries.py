"""What a comparison compares: evaluated models, read from the folders of `evaluate` and `post_train`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.data.tables import read_table
from posttrain.errors import UserError
from posttrain.evaluation.metrics import paired
from posttrain.evaluation.statistics import Estimate
from posttrain.tracking.metrics_file import NAME, read_lines

BASELINE = "sft"

Row = dict[str, Any]
Curve = tuple[list[int], list[float]]


@dataclass(frozen=True)
class Entry:
    """One evaluated model.

    `rows` are those of samples.parquet, `metrics` the model's own and, for a run, the paired ones against its baseline,
    `curves` (steps, values) of each metric logged in training.
    """

    name: str
    method: str
    seed: int | None
    rows: list[Row]
    metrics: dict[str, Estimate]
    curves: dict[str, Curve]

    @property
    def is_baseline(self) -> bool:
        """Whether this is an SFT model that runs are measured against."""
        return self.method == BASELINE


@dataclass(frozen=True)
class Record:
    """One stage that ran: its manifest and the facts of its execution."""

    manifest: dict[str, Any]
    facts: dict[str, Any]


def read_entries(
    evaluations: Mapping[str, Path], runs: Mapping[str, Path], resamples: int, seed: int, prefix: str = ""
) -> list[Entry]:
    """The baseline and the runs of one experiment, in the order of `evaluations` (name -> folder), baseline first.

    `runs` are the folders of `post_train`. Raises UserError where the baseline or a file is missing, or where the
    prompts differ.
    """
    if BASELINE not in evaluations:
        raise UserError("the evaluation of the SFT model is missing: run snakemake again to make eval/sft")
    baseline = _rows(evaluations[BASELINE])
    entries = []
    for name in [BASELINE, *(name for name in evaluations if name != BASELINE)]:
        rows = baseline if name == BASELINE else _rows(evaluations[name])
        metrics = _metrics(evaluations[name])
        if name != BASELINE:
            metrics.update(paired(rows, baseline, name, resamples, seed))
        settings = _settings(runs.get(name))
        method = BASELINE if name == BASELINE else settings.get("run", {}).get("method", "unknown")
        curves = read_curves(runs[name] / NAME) if name in runs else {}
        entries.append(Entry(prefix + name, method, settings.get("seed"), rows, metrics, curves))
    return entries


def read_records(experiment: Path, names: Sequence[str]) -> list[Record]:
    """Every finished stage in an experiment's folder, less those of runs that are not in `names`, in time's order."""
    records = []
    for pattern in ("*", "runs/*", "eval/*"):
        for path in experiment.glob(f"{pattern}/manifest.json"):
            manifest, facts = _read_json(path), path.with_name("run.json")
            if manifest.get("stage") != "compare" and manifest.get("run") in (None, *names) and facts.exists():
                records.append(Record(manifest, _read_json(facts)))
    return sorted(records, key=lambda record: str(record.facts.get("started", "")))


def read_curves(path: Path) -> dict[str, Curve]:
    """The training metrics of a metrics.jsonl, in the order of their steps."""
    points: dict[str, dict[int, float]] = {}
    for line in read_lines(path):
        if line.step is not None:
            for name, value in line.values.items():
                points.setdefault(name, {})[line.step] = value
    return {name: (sorted(found), [found[step] for step in sorted(found)]) for name, found in points.items()}


def _rows(folder: Path) -> list[Row]:
    return [
        {str(key): value for key, value in row.items()}
        for row in read_table(folder / "samples.parquet").to_dict("records")
    ]


def _metrics(folder: Path) -> dict[str, Estimate]:
    return {name: Estimate(**fields) for name, fields in _read_json(folder / "metrics.json").items()}


def _settings(run: Path | None) -> dict[str, Any]:
    settings: dict[str, Any] = _read_json(run / "manifest.json").get("config", {}) if run else {}
    return settings


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): run the stage that makes it again") from None
    return content
