"""`posttrain compare A B ...`: the comparison of any experiments' folders, outside of the workflow."""

from __future__ import annotations

import argparse
from pathlib import Path

from pydantic import ValidationError

from posttrain.checkpoint.publish import MANIFEST
from posttrain.config.load import parse_config, read_yaml
from posttrain.config.schema import Flags
from posttrain.errors import UserError
from posttrain.evaluation.comparison import Experiment, compare, notes
from posttrain.evaluation.entries import BASELINE, read_entries, read_json, read_records
from posttrain.evaluation.files import write_all
from posttrain.evaluation.findings import findings
from posttrain.provenance.digests import file_digest


def main(argv: list[str]) -> int:
    """Write summary.csv, seeds.csv, report.html and the pictures.

    Every run is measured against its own folder's SFT model, and held against its own experiment's thresholds.
    """
    options = _options(argv)
    several = len(options.folders) > 1
    experiments = [read_experiment(folder, several, options.bootstrap, options.seed) for folder in options.folders]
    comparison = compare(experiments)
    _check_output(options.output)
    try:
        write_all(options.output, ", ".join(each.name for each in experiments), comparison)
    except OSError as error:
        raise _cannot_write(options.output, error) from None
    print(*notes(comparison), *findings(comparison), f"{options.output / 'report.html'} is written", sep="\n")
    return 0


def _check_output(folder: Path) -> None:
    """Make the folder. Raises UserError where it cannot be, or is a finished stage's, whose files have digests."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        finished = (folder / MANIFEST).exists()
    except (FileExistsError, NotADirectoryError):
        raise UserError(f"--output {folder} is a file, or lies below one; give a folder") from None
    except OSError as error:
        raise _cannot_write(folder, error) from None
    if finished:
        raise UserError(f"--output {folder} holds a finished stage ({MANIFEST}); give another folder")


def _cannot_write(folder: Path, error: OSError) -> UserError:
    return UserError(f"--output {folder} cannot be written ({error}); give another folder")


def read_experiment(folder: Path, several: bool, resamples: int, seed: int) -> Experiment:
    """What is finished in an experiment's folder; `several` puts its name before those of its runs.

    Raises UserError where it is no experiment's folder, or a part of it is missing or damaged.
    """
    name = folder.resolve().name
    evaluations = {path.parent.name: path.parent for path in sorted(folder.glob("eval/*/manifest.json"))}
    if not evaluations:
        what = "has no finished evaluation (eval/*/manifest.json)" if folder.is_dir() else "is no folder"
        raise UserError(f"{folder} {what}; name an experiment's results folder, as results/reviews")
    if BASELINE not in evaluations:
        raise UserError(f"{folder}/eval/{BASELINE} is not finished: run snakemake for this experiment again")
    runs = {run: folder / "runs" / run for run in evaluations if run != BASELINE}
    for run, path in runs.items():
        _check_evaluated(path, evaluations[run])
    trained = [path.parent.name for path in sorted(folder.glob("runs/*/manifest.json"))]
    return Experiment(
        name,
        read_entries(evaluations, runs, resamples, seed, f"{name}/" if several else ""),
        thresholds(folder),
        read_records(folder, [*evaluations]),
        {stage: folder / stage for stage in ("data", "reward_model") if (folder / stage).is_dir()},
        [run for run in trained if run not in evaluations],
    )


def _check_evaluated(run: Path, evaluation: Path) -> None:
    """The evaluation is of the run as it is now. Raises UserError where it is not."""
    made_of = read_json(evaluation / "manifest.json").get("inputs", {}).get("post")
    file = run / "manifest.json"
    if not file.exists() or made_of not in (None, file_digest(file)):
        raise UserError(f"{evaluation} is of an earlier {run}: run snakemake for this experiment again")


def thresholds(folder: Path) -> Flags:
    """Those of the experiment's last comparison, else of its newest configuration, else the defaults."""
    last = folder / "compare" / "manifest.json"
    limits = read_json(last).get("config", {}).get("flags") if last.exists() else None
    if limits is not None:
        try:
            return Flags.model_validate(limits)
        except ValidationError:
            raise UserError(f"{last} has flags of another version: run snakemake for this experiment again") from None
    configs = sorted((folder / ".state" / "config").glob("*.yaml"), key=lambda path: path.stat().st_mtime_ns)
    return parse_config(read_yaml(configs[-1]), str(configs[-1])).flags if configs else Flags()


def _options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="posttrain compare", description="Compare the runs of finished experiments.")
    parser.add_argument("folders", nargs="+", type=Path, metavar="RESULTS", help="such as results/quick")
    parser.add_argument("--output", type=Path, default=Path("comparison"), help="folder to write (comparison)")
    parser.add_argument("--bootstrap", type=int, default=1000, help="resamples of the intervals (1000)")
    parser.add_argument("--seed", type=int, default=0, help="of the resamples (0)")
    options = parser.parse_args(argv)
    if options.bootstrap < 1:
        raise UserError(f"--bootstrap {options.bootstrap}: give at least 1")
    if options.seed < 0:
        raise UserError(f"--seed {options.seed}: give 0 or more")
    names = [folder.resolve().name for folder in options.folders]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise UserError(f"two of the folders are called {twice}: give each folder once, under a name of its own")
    return options
