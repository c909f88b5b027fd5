"""What a comparison compares: evaluated models, read from the folders of `evaluate` and `post_train`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.data.tables import EVALUATED, read_table
from posttrain.errors import UserError
from posttrain.evaluation.metrics import paired
from posttrain.evaluation.statistics import Estimate
from posttrain.provenance.digests import text_digest
from posttrain.tracking.metrics_file import NAME, read_lines

BASELINE = "sft"
# Every run is made of these, and runs on ranked preferences of two more.
_SHARED = {"data", "sft", "reward_model"}
_RANKED = {"samples", "preferences"}
# What an experiment starts from, which its configuration names and does not hold.
ORIGIN = ("raw data", "base model", "judge's file")

Row = dict[str, Any]
Curve = tuple[list[int], list[float]]


@dataclass(frozen=True)
class Entry:
    """One evaluated model.

    `rows` are those of samples.parquet, `metrics` the model's own and, for a run, the paired ones against its baseline,
    `curves` (steps, values) of each metric logged in training. `recipe` is equal for runs that differ by seeds alone,
    `seeds` are the run's and its experiment's. `settings` and `made_from` are the configuration of its evaluation and
    the digest of each input; `origin` is the digest of what its experiment started from (ORIGIN), where it is known.
    """

    name: str
    short_name: str  # without its experiment's
    method: str
    seed: int | None
    seeds: tuple[int | None, int | None]
    recipe: str
    settings: Mapping[str, Any]
    made_from: Mapping[str, str]
    origin: Mapping[str, str | None]
    rows: list[Row]
    metrics: dict[str, Estimate]
    curves: dict[str, Curve]

    @property
    def is_baseline(self) -> bool:
        """Whether this is an SFT model that runs are measured against."""
        return self.method == BASELINE

    @property
    def judge(self) -> str | None:
        """The judge that the experiment named."""
        name: str | None = self.settings.get("evaluation", {}).get("judge")
        return name


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
        metrics = estimates(evaluations[name] / "metrics.json")
        if name != BASELINE:
            metrics.update(paired(rows, baseline, prefix + name, resamples, seed))
        entries.append(_entry(name, prefix, evaluations[name], runs.get(name), rows, metrics))
    return entries


def _entry(
    name: str, prefix: str, evaluation: Path, run: Path | None, rows: list[Row], metrics: dict[str, Estimate]
) -> Entry:
    evaluated, trained = _manifest(evaluation), _manifest(run) if run else {}
    settings = trained.get("config", {})
    origin = _origin(evaluation, evaluated)
    return Entry(
        name=prefix + name,
        short_name=name,
        method=BASELINE if name == BASELINE else settings.get("run", {}).get("method", "unknown"),
        seed=settings.get("seed"),
        seeds=(settings.get("seed"), evaluated.get("config", {}).get("seed")),
        recipe=_recipe(name, evaluation, evaluated, trained, origin),
        settings=evaluated.get("config", {}),
        made_from=evaluated.get("inputs", {}),
        origin=origin,
        rows=rows,
        metrics=metrics,
        curves=read_curves(run / NAME) if run else {},
    )


def read_records(experiment: Path, names: Sequence[str]) -> list[Record]:
    """Every finished stage in an experiment's folder, less those of runs that are not in `names`, in time's order."""
    records = []
    for pattern in ("*", "runs/*", "eval/*"):
        for path in sorted(experiment.glob(f"{pattern}/manifest.json")):
            manifest, facts = read_json(path), path.with_name("run.json")
            if manifest.get("stage") != "compare" and manifest.get("run") in (None, *names) and facts.exists():
                records.append(Record(manifest, read_json(facts)))
    return sorted(records, key=lambda record: str(record.facts.get("started", "")))


def read_curves(path: Path) -> dict[str, Curve]:
    """The training metrics of a metrics.jsonl, in the order of their steps."""
    points: dict[str, dict[int, float]] = {}
    try:
        lines = read_lines(path)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is damaged ({error}): run the stage that makes it again") from None
    for line in lines:
        if line.step is not None:
            for name, value in line.values.items():
                points.setdefault(name, {})[line.step] = value
    return {name: (sorted(found), [found[step] for step in sorted(found)]) for name, found in points.items()}


def read_json(path: Path) -> dict[str, Any]:
    """A file with one JSON object. Raises UserError where it is missing or another thing."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): run the stage that makes it again") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no JSON object: run the stage that makes it again")
    return content


def estimates(path: Path) -> dict[str, Estimate]:
    """A metrics.json of `evaluate` or `reward_model`. Raises UserError where it is missing or another thing."""
    try:
        found = {name: Estimate(**fields) for name, fields in read_json(path).items()}
        numbers = [x for each in found.values() for x in (each.value, each.low, each.high, each.n)]
        if not all(isinstance(number, (int, float)) for number in numbers):
            raise TypeError
        return found
    except TypeError:
        raise UserError(f"{path} holds other things than estimates: run the stage that makes it again") from None


def _manifest(folder: Path) -> dict[str, Any]:
    """A stage's manifest, whose parts that are read here are mappings."""
    content = read_json(folder / "manifest.json")
    config = content.get("config", {})
    parts = [config, content.get("inputs", {})]
    parts += [config.get(name, {}) for name in ("run", "evaluation", "model")] if isinstance(config, dict) else []
    if not all(isinstance(part, dict) for part in parts):
        raise UserError(f"{folder / 'manifest.json'} is no stage's manifest: run the stage that makes it again")
    return content


def _rows(folder: Path) -> list[Row]:
    table = read_table(folder / "samples.parquet")
    optional = {field.name for field in EVALUATED if field.nullable}
    missing = set(EVALUATED.names) - optional - set(table.columns)
    if missing or table.empty:
        lack = f"has no column {', '.join(sorted(missing))}" if missing else "has no rows"
        raise UserError(f"{folder / 'samples.parquet'} {lack}: run evaluate again to make it")
    rows = [{str(key): value for key, value in row.items()} for row in table.to_dict("records")]
    return [{**dict.fromkeys(optional), **row} for row in rows]


def _origin(evaluation: Path, evaluated: dict[str, Any]) -> dict[str, str | None]:
    """Digests of what the experiment started from.

    Of the base model it is that of the files which `fetch_model` made, where they are there: its manifest, which is the
    input, also names the program's version.
    """
    inputs = evaluated.get("inputs", {})
    fetched = evaluation.parents[1] / "model" / "manifest.json"
    files = read_json(fetched).get("outputs") if fetched.exists() else None
    base = text_digest(json.dumps(files, sort_keys=True)) if files else inputs.get("model")
    return dict(zip(ORIGIN, (evaluated.get("data"), base, inputs.get("judge")), strict=True))


def _recipe(
    name: str,
    evaluation: Path,
    evaluated: dict[str, Any],
    trained: dict[str, Any],
    origin: Mapping[str, str | None],
) -> str:
    """The origin and all settings of a run's training and evaluation and of the stages before.

    Without seeds and where it ran. A run without a manifest is like no other.
    """
    if not trained:
        return f"{evaluation}: {name}"
    stages = _SHARED | (_RANKED if "preferences" in trained.get("inputs", {}) else set())
    before = {stage: evaluation.parents[1] / stage / "manifest.json" for stage in sorted(stages)}
    settings = {stage: read_json(path).get("config") for stage, path in before.items() if path.exists()}
    settings |= {"run": trained.get("config"), "evaluation": evaluated.get("config"), "origin": origin}
    return json.dumps(_without(settings, ("seed", "device", "threads")), sort_keys=True)


def _without(value: Any, keys: Sequence[str]) -> Any:
    """The same nested mapping without some keys."""
    if not isinstance(value, dict):
        return value
    return {key: _without(inner, keys) for key, inner in value.items() if key not in keys}
