"""Means over seeds, and which runs are seeds of one another."""

from __future__ import annotations

import csv
import json
import math
import statistics
from pathlib import Path

import numpy as np
import pytest

from posttrain.evaluation.comparison import Comparison, compare, notes
from posttrain.evaluation.seeds import find_groups, over_seeds, write_seeds
from posttrain.evaluation.summary import columns_of
from tests.evaluation import fake

# Student's t at 0.975 for 1, 2 and 4 degrees of freedom, whose quantiles have closed forms (Shaw 2006, "Sampling
# Student's T distribution", section 3).
T1 = math.tan(math.pi * 0.475)
T2 = 0.95 / math.sqrt(2 * 0.975 * 0.025)
_A = 4 * 0.975 * 0.025
T4 = 2 * math.sqrt(math.cos(math.acos(math.sqrt(_A)) / 3) / math.sqrt(_A) - 1)


@pytest.mark.parametrize(
    ("values", "quantile"), [([1.0, 2.0], T1), ([0.1, 0.4, 0.3], T2), ([3.0, 1.0, 4.0, 1.0, 5.0], T4)]
)
def test_the_interval_is_student_s(values: list[float], quantile: float) -> None:
    found = over_seeds(values)
    arm = quantile * statistics.stdev(values) / math.sqrt(len(values))
    assert found.value == pytest.approx(statistics.fmean(values)) and found.n == len(values)
    assert (found.low, found.high) == (pytest.approx(found.value - arm), pytest.approx(found.value + arm))


def test_it_covers_the_truth_as_often_as_it_says() -> None:
    drawn = np.random.default_rng(0).normal(2.0, 3.0, size=(4000, 3))
    inside = sum(found.low <= 2.0 <= found.high for found in map(over_seeds, drawn.tolist()))
    assert inside / 4000 == pytest.approx(0.95, abs=0.012)


RUNS = {
    "ppo-0": ("ppo", 1.0),
    "ppo-1": ("ppo", 0.9),
    "ppo-2": ("ppo", 0.02),
    "dpo_a": ("dpo", -0.5),
    "dpo_b": ("dpo", -0.5),
    "kto": ("kto", 0.4),
}
SEEDS = {"ppo-0": 0, "ppo-1": 1, "ppo-2": 2, "dpo_a": 0, "dpo_b": 1}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("results") / "seeds"
    fake.experiment(root, RUNS, seeds=SEEDS)
    return root


def test_runs_that_differ_by_their_seed_are_a_group(root: Path) -> None:
    groups = find_groups(fake.read(root).entries)
    assert {group.name: [entry.name for entry in group.members] for group in groups} == {
        "dpo": ["dpo_a", "dpo_b"],
        "ppo": ["ppo-0", "ppo-1", "ppo-2"],
    }


def test_the_file_has_means_intervals_and_counts(root: Path, tmp_path: Path) -> None:
    entries = fake.read(root).entries
    groups = find_groups(entries)
    for name in ("a.csv", "b.csv"):
        write_seeds(tmp_path / name, groups, columns_of(entries))
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = {row["group"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["dpo", "ppo"]
    assert (rows["ppo"]["method"], rows["ppo"]["seeds"], rows["ppo"]["runs"]) == ("ppo", "3", "ppo-0;ppo-1;ppo-2")
    gains = []
    for name in SEEDS:
        if name.startswith("ppo"):
            own = fake.rows(128, RUNS[name][1], len(name) + sum(map(ord, name)))
            sft = fake.rows(128, 0.0, 3 + sum(map(ord, "sft")))
            gains.append(statistics.fmean(a["judge"] - b["judge"] for a, b in zip(own, sft, strict=True)))
    arm = T2 * statistics.stdev(gains) / math.sqrt(3)
    found = [float(rows["ppo"][f"judge_gain{end}"]) for end in ("", "_low", "_high")]
    mean = statistics.fmean(gains)
    assert found == pytest.approx([mean, mean - arm, mean + arm], rel=1e-5)
    assert rows["ppo"]["judge_gain_above_0"] == "2" and rows["dpo"]["judge_gain_above_0"] == "0"


def test_other_settings_are_another_group(tmp_path: Path) -> None:
    fake.experiment(tmp_path / "x", {"a": ("ppo", 1.0), "b": ("ppo", 1.0)}, count=20, seeds={"a": 0, "b": 1})
    assert len(find_groups(fake.read(tmp_path / "x", 20).entries)) == 1
    run = tmp_path / "x/runs/b"
    fake.record(run, "post_train", "b", {"seed": 1, "run": {"method": "ppo", "seed": 1, "kl_coef": 0.5}})
    assert find_groups(fake.read(tmp_path / "x", 20).entries) == []


def test_across_experiments_the_stages_before_count_too(tmp_path: Path) -> None:
    for seed, steps in (("0", 10), ("1", 10), ("2", 99)):
        fake.experiment(tmp_path / f"x{seed}", {"ppo": ("ppo", 1.0)}, count=20, seeds={"ppo": int(seed)})
        fake.record(tmp_path / f"x{seed}/sft", "sft", None, {"seed": int(seed), "sft": {"steps": steps}})
    experiments = [fake.read(tmp_path / f"x{seed}", 20, prefix=f"x{seed}/") for seed in "012"]
    groups = compare(experiments).groups
    assert [(group.name, [entry.name for entry in group.members]) for group in groups] == [
        ("ppo", ["x0/ppo", "x1/ppo"])
    ]


def test_a_copy_of_a_run_is_no_further_seed(tmp_path: Path) -> None:
    seeds = {"a-0": 0, "a-1": 1, "a-1-again": 1}
    fake.experiment(tmp_path / "x", dict.fromkeys(seeds, ("ppo", 1.0)), count=20, seeds=seeds)
    comparison = fake.comparison(tmp_path / "x", resamples=20)
    assert [[entry.name for entry in group.members] for group in comparison.groups] == [["a-0", "a-1"]]
    assert notes(comparison) == ["a-1-again repeats a seed of a and is left out of its mean."]


def test_a_group_does_not_take_a_run_s_name(tmp_path: Path) -> None:
    fake.experiment(tmp_path / "x", dict.fromkeys(["ppo-0", "ppo-1"], ("ppo", 1.0)), count=20, seeds={"ppo-0": 0})
    fake.evaluation(tmp_path / "x/eval/ppo", "ppo", 1.0, count=20)
    fake.run(tmp_path / "x/runs/ppo", "ppo", "ppo", kl_coef=0.0)
    comparison = fake.comparison(tmp_path / "x", resamples=20)
    assert [subject.name for subject in comparison.subjects()] == ["sft", "ppo", "ppo (ppo-0, ...)"]


def test_groups_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for name, method in (("x0", "ppo"), ("x1", "ppo"), ("y0", "dpo"), ("y1", "dpo")):
        fake.experiment(tmp_path / name, {"run": (method, 1.0)}, count=20, seeds={"run": int(name[1])})
    experiments = [fake.read(tmp_path / name, 20, prefix=f"{name}/") for name in ("x0", "x1", "y0", "y1")]
    names = [group.name for group in compare(experiments).groups]
    assert names == ["run (x0/run, ...)", "run (y0/run, ...)"]


ORIGINS = [
    ("raw data", {"data": "d" * 64}),
    ("base model", {"inputs": {"model": "d" * 64}}),
    ("judge's file", {"inputs": {"judge": "d" * 64}}),
]


@pytest.mark.parametrize(("what", "other"), ORIGINS, ids=[what for what, _ in ORIGINS])
def test_other_beginnings_are_no_seeds_and_are_told(tmp_path: Path, what: str, other: dict[str, object]) -> None:
    for seed in (0, 1):
        fake.experiment(tmp_path / f"x{seed}", {"ppo": ("ppo", 1.0)}, count=20, seeds={"ppo": seed})

    def read() -> Comparison:
        return compare([fake.read(tmp_path / f"x{seed}", 20, prefix=f"x{seed}/") for seed in (0, 1)])

    assert len(read().groups) == 1 and not any("differs" in note for note in notes(read()))
    for path in tmp_path.glob("x1/eval/*/manifest.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), **other}))
    assert read().groups == []
    (said,) = [note for note in notes(read()) if "differs" in note]
    assert said.startswith(f"The {what} differs") and "x1: dddddddddddd)" in said


def test_a_base_model_is_known_by_its_files(tmp_path: Path) -> None:
    """Equal weights that two versions of the program fetched are one base."""
    for seed in (0, 1):
        root = tmp_path / f"x{seed}"
        fake.experiment(root, {"ppo": ("ppo", 1.0)}, count=20, seeds={"ppo": seed})
        for path in root.glob("eval/*/manifest.json"):
            path.write_text(json.dumps({**json.loads(path.read_text()), "inputs": {"model": str(seed) * 64}}))
        (root / "model").mkdir()
        files = {"model/model.safetensors": {"sha256": "a" * 64, "size": 1}}
        (root / "model/manifest.json").write_text(json.dumps({"code": str(seed), "outputs": files}))
    experiments = [fake.read(tmp_path / f"x{seed}", 20, prefix=f"x{seed}/") for seed in (0, 1)]
    assert len(compare(experiments).groups) == 1
    files["model/model.safetensors"]["sha256"] = "b" * 64
    (root / "model/manifest.json").write_text(json.dumps({"outputs": files}))
    experiments[1] = fake.read(root, 20, prefix="x1/")
    assert compare(experiments).groups == []
