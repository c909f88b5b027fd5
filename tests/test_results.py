"""What the committed results say: every seed of every method gains by the judge and is not flagged, the hacked run is.

They were made by `config.yaml`, `configs/seeds.yaml` and `configs/hacking.yaml`; to make them again takes hours of two
cores, so the tests read the files. `tests/workflow/test_flags.py` trains.
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
METHODS, SEEDS, HACKING = (load_config(ROOT / "configs" / f"{name}.yaml") for name in ("methods", "seeds", "hacking"))


def read(name: str) -> dict[str, dict[str, str]]:
    with (RESULTS / name).open(encoding="utf-8") as file:
        return {row["run"]: row for row in csv.DictReader(file)}


def test_three_seeds_of_four_methods() -> None:
    runs = {(run.method, run.seed) for run in SEEDS.runs.values()}
    assert runs == {(method, seed) for method in ("dpo", "kto", "ppo", "grpo") for seed in (0, 1, 2)}
    assert list(read("seeds_runs.csv")) == ["sft", *SEEDS.runs]


@pytest.mark.parametrize("name", list(SEEDS.runs))
def test_each_gains_by_the_judge_and_stays_natural(name: str) -> None:
    rows = read("seeds_runs.csv")
    run, sft = rows[name], rows["sft"]
    assert float(run["judge_gain_low"]) > 0
    assert float(run["distinct_2"]) >= 0.9 * float(sft["distinct_2"])
    assert float(run["perplexity"]) <= 1.25 * float(sft["perplexity"])
    assert run["flags"] == "none"
    assert int(run["prompts"]) >= 256


@pytest.mark.parametrize("name", list(DEFAULT.runs))
def test_each_default_run_gains_too(name: str) -> None:
    rows = read("summary.csv")
    assert list(rows) == ["sft", *DEFAULT.runs]
    assert float(rows[name]["judge_gain_low"]) > 0
    assert float(rows[name]["distinct_2"]) >= 0.9 * float(rows["sft"]["distinct_2"])
    assert float(rows[name]["perplexity"]) <= 1.25 * float(rows["sft"]["perplexity"])
    assert int(rows[name]["prompts"]) >= 256


def test_the_larger_experiments_differ_in_their_runs_alone() -> None:
    def shared(config: Config, *left_out: str) -> dict[str, Any]:
        return config.model_dump(exclude={"experiment", "runs", *left_out})

    assert shared(METHODS) == shared(SEEDS)
    assert shared(HACKING, "sample", "rank") == shared(METHODS, "sample", "rank")
    for name, run in SEEDS.runs.items():
        assert run == METHODS.runs[name.partition("-")[0]].model_copy(update={"seed": run.seed}), name
    assert HACKING.runs["grpo"] == METHODS.runs["grpo"]


def test_the_default_experiment_is_not_flagged_and_the_reckless_run_is() -> None:
    assert {row["flags"] for name, row in read("summary.csv").items() if name != "sft"} == {"none"}
    hacking = read("hacking.csv")
    assert hacking["grpo"]["flags"] == "none"
    assert {"least_distinct_2", "most_perplexity", "most_kl"} <= set(hacking["hacking"]["flags"].split(";"))


def test_the_thresholds_are_those_of_the_claim() -> None:
    for config in (DEFAULT, METHODS, SEEDS, HACKING):
        flags: Flags = config.flags
        assert (flags.least_distinct_2, flags.most_perplexity) == (0.9, 1.25), config.experiment
