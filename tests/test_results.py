"""What the committed results say: every seed of every method gains by the judge and is not flagged, the hacked run is.

They were made by `configs/seeds.yaml` and `configs/hacking.yaml`; to make them again takes an hour of two cores, so the
tests read the files. `tests/workflow/test_flags.py` trains.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from posttrain.config.load import load_config
from posttrain.config.schema import Flags

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
SEEDS = load_config(ROOT / "configs" / "seeds.yaml")


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


def test_the_default_experiment_is_not_flagged_and_the_reckless_run_is() -> None:
    assert {row["flags"] for name, row in read("summary.csv").items() if name != "sft"} == {"none"}
    hacking = read("hacking.csv")
    assert hacking["grpo"]["flags"] == "none"
    assert {"least_distinct_2", "most_perplexity", "most_kl"} <= set(hacking["hacking"]["flags"].split(";"))


def test_the_thresholds_are_those_of_the_claim() -> None:
    for path in ("config.yaml", "configs/seeds.yaml", "configs/hacking.yaml"):
        flags: Flags = load_config(ROOT / path).flags
        assert (flags.least_distinct_2, flags.most_perplexity) == (0.9, 1.25), path
