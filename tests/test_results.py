"""What the committed results say: every seed of every method gains by the judge and is not flagged, the hacked run is.

They are those of `config.yaml`, `configs/seeds.yaml` and `configs/hacking.yaml`; to make them again takes an hour of
two cores, so the tests read the files. `tests/workflow/test_flags.py` trains.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from posttrain.config.load import load_config
from posttrain.config.schema import Config, Flags

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
DEFAULT = load_config(ROOT / "config.yaml")
METHODS = load_config(ROOT / "configs" / "methods.yaml")
SEEDS = load_config(ROOT / "configs" / "seeds.yaml")
HACKING = load_config(ROOT / "configs" / "hacking.yaml")
of_seeds = pytest.mark.skipif(
    not (RESULTS / "seeds_runs.csv").exists(),
    reason="docs/results has no table of configs/seeds.yaml as it is now: run it, and copy summary.csv and seeds.csv",
)


def read(name: str) -> dict[str, dict[str, str]]:
    with (RESULTS / name).open(encoding="utf-8") as file:
        return {row["run"]: row for row in csv.DictReader(file)}


def test_three_seeds_of_four_methods() -> None:
    runs = {(run.method, run.seed) for run in SEEDS.runs.values()}
    assert runs == {(method, seed) for method in ("dpo", "kto", "ppo", "grpo") for seed in (0, 1, 2)}


@of_seeds
@pytest.mark.parametrize("name", list(SEEDS.runs))
def test_each_gains_by_the_judge_and_stays_natural(name: str) -> None:
    rows = read("seeds_runs.csv")
    run, sft = rows[name], rows["sft"]
    assert float(run["judge_gain_low"]) > 0
    assert float(run["distinct_2"]) >= 0.9 * float(sft["distinct_2"])
    assert float(run["perplexity"]) <= 1.25 * float(sft["perplexity"])
    assert run["flags"] == "none"
    assert int(run["prompts"]) >= 256


def test_the_default_experiment_is_not_flagged_and_the_reckless_run_is() -> None:
    assert {row["flags"] for name, row in read("summary.csv").items() if name != "sft"} == {"none"}
    hacking = read("hacking.csv")
    assert hacking["grpo"]["flags"] == "none"
    assert {"least_distinct_2", "most_perplexity", "most_kl"} <= set(hacking["hacking"]["flags"].split(";"))


def test_the_thresholds_are_those_of_the_claim() -> None:
    for config in (DEFAULT, METHODS, SEEDS, HACKING):
        flags: Flags = config.flags
        assert (flags.least_distinct_2, flags.most_perplexity) == (0.9, 1.25), config.experiment


def shared(config: Config, *left_out: str) -> dict[str, Any]:
    """Everything but the experiment's name, its runs and the sections left out."""
    return config.model_dump(exclude={"experiment", "runs", *left_out})


def test_the_experiments_differ_in_their_runs_alone() -> None:
    assert shared(DEFAULT) == shared(METHODS) == shared(SEEDS)
    assert shared(HACKING, "sample", "rank") == shared(METHODS, "sample", "rank")
    assert list(DEFAULT.runs) == ["dpo", "ppo"] and list(METHODS.runs) == ["dpo", "kto", "ppo", "grpo"]
    for name, run in DEFAULT.runs.items():
        assert run == METHODS.runs[name]
    for name, run in SEEDS.runs.items():
        assert run == METHODS.runs[name.partition("-")[0]].model_copy(update={"seed": run.seed}), name
    assert HACKING.runs["grpo"] == METHODS.runs["grpo"]


def test_the_baseline_is_the_same_in_both_tables() -> None:
    assert read("summary.csv")["sft"] == read("hacking.csv")["sft"]


@of_seeds
def test_the_tables_are_of_the_same_settings() -> None:
    """A run of seed 0 has the same figures in every experiment that it stands in."""

    def figures(row: dict[str, str]) -> dict[str, str]:
        return {key: value for key, value in row.items() if key != "run"}

    seeds, summary, hacking = read("seeds_runs.csv"), read("summary.csv"), read("hacking.csv")
    assert list(seeds) == ["sft", *SEEDS.runs]
    assert list(summary) == ["sft", *DEFAULT.runs] and list(hacking) == ["sft", *HACKING.runs]
    assert seeds["sft"] == summary["sft"] == hacking["sft"]
    for name in DEFAULT.runs:
        assert figures(summary[name]) == figures(seeds[f"{name}-0"])
    assert figures(hacking["grpo"]) == figures(seeds["grpo-0"])
