"""Reading finished folders, and refusing damaged ones in one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from posttrain.errors import UserError
from posttrain.evaluation.entries import Entry, read_curves, read_entries, read_records
from posttrain.tracking.metrics_file import MetricsFile
from tests.evaluation import fake

RUNS = {"ppo": ("ppo", 1.0), "dpo": ("dpo", -1.0), "kto": ("kto", 0.02)}


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("results") / "quick"
    fake.experiment(root, RUNS)
    return root


@pytest.fixture(scope="module")
def entries(experiment: Path) -> list[Entry]:
    evaluations = {name: experiment / "eval" / name for name in ("ppo", "sft", "dpo", "kto")}
    return read_entries(evaluations, {name: experiment / "runs" / name for name in RUNS}, 200, 0)


def test_the_baseline_is_first_and_has_no_pairs(entries: list[Entry]) -> None:
    assert [(entry.name, entry.method, entry.seed, entry.judge) for entry in entries] == [
        ("sft", "sft", None, "vader"),
        ("ppo", "ppo", 7, "vader"),
        ("dpo", "dpo", 7, "vader"),
        ("kto", "kto", 7, "vader"),
    ]
    assert ["eval/win_rate" in entry.metrics for entry in entries] == [False, True, True, True]


def test_only_stages_of_this_comparison_are_told(experiment: Path) -> None:
    found = {record.manifest["run"] for record in read_records(experiment, ["sft", "ppo"])}
    assert found == {"sft", "ppo"}


def test_curves_are_in_the_order_of_their_steps(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    for step in (3, 1, 2):
        file.log(step, {"loss": step * 10})
    file.summary({"loss": 99})
    assert read_curves(tmp_path / "metrics.jsonl") == {"loss": ([1, 2, 3], [10.0, 20.0, 30.0])}


def test_folders_of_an_earlier_version_have_no_judge(tmp_path: Path) -> None:
    fake.experiment(tmp_path / "x", {"ppo": ("ppo", 1.0)}, count=20)
    for path in tmp_path.glob("x/eval/*/samples.parquet"):
        pd.read_parquet(path).drop(columns=["judge", "base_log_prob"]).to_parquet(path)
    entry = fake.read(tmp_path / "x", 20).entries[1]
    assert "eval/reward_gain" in entry.metrics and "eval/judge_gain" not in entry.metrics


def test_other_prompts_and_a_missing_baseline_are_refused(experiment: Path, tmp_path: Path) -> None:
    fake.evaluation(tmp_path / "eval/few", "few", 0.0, count=5)
    sft = experiment / "eval/sft"
    with pytest.raises(UserError, match=r"few .* different prompts"):
        read_entries({"sft": sft, "few": tmp_path / "eval/few"}, {}, 10, 0)
    with pytest.raises(UserError, match="SFT model is missing"):
        read_entries({"ppo": sft}, {}, 10, 0)


def _write(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text)


def _few_columns(path: Path) -> None:
    pd.DataFrame([{"id": "a", "prompt_ids": [1]}]).to_parquet(path)


def _no_rows(path: Path) -> None:
    pd.read_parquet(path).iloc[:0].to_parquet(path)


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("eval/sft/metrics.json", Path.unlink, r"metrics\.json cannot be read"),
        ("eval/sft/metrics.json", _write("{"), r"metrics\.json cannot be read"),
        ("eval/sft/metrics.json", _write("[1]"), r"metrics\.json holds no JSON object"),
        ("eval/sft/metrics.json", _write('{"eval/reward": 1}'), r"metrics\.json holds other things than estimates"),
        ("eval/sft/metrics.json", _write('{"a": {"value": 1}}'), r"metrics\.json holds other things than estimates"),
        ("eval/sft/metrics.json", _write('{"eval/kl": {"value": "x", "low": 1, "high": 1, "n": 1}}'), "estimates"),
        ("eval/ppo/manifest.json", _write("[]"), r"manifest\.json holds no JSON object"),
        ("eval/ppo/manifest.json", _write('{"config": 3}'), r"manifest\.json is no stage's manifest"),
        ("runs/ppo/manifest.json", _write('{"config": {"run": []}}'), r"manifest\.json is no stage's manifest"),
        ("runs/ppo/metrics.jsonl", _write("{}\n"), r"metrics\.jsonl is damaged"),
        ("runs/ppo/metrics.jsonl", _write("not JSON\n"), r"metrics\.jsonl is damaged"),
        ("runs/ppo/metrics.jsonl", _write("[]\n"), r"metrics\.jsonl is damaged"),
        ("eval/ppo/samples.parquet", _write("PAR1"), r"samples\.parquet is not a readable Parquet file"),
        ("eval/ppo/samples.parquet", _few_columns, r"samples\.parquet has no column completion_ids, finish"),
        ("eval/ppo/samples.parquet", _no_rows, r"samples\.parquet has no rows"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, file: str, damage: Callable[[Path], object], message: str) -> None:
    fake.experiment(tmp_path / "x", {"ppo": ("ppo", 1.0)}, count=20)
    damage(tmp_path / "x" / file)
    with pytest.raises(UserError, match=message) as caught:
        fake.read(tmp_path / "x", 20)
    assert "\n" not in str(caught.value)


def test_a_manifest_without_facts_is_no_record(experiment: Path, tmp_path: Path) -> None:
    (tmp_path / "sft").mkdir()
    (tmp_path / "sft" / "manifest.json").write_text(json.dumps({"stage": "sft"}))
    assert read_records(tmp_path, ["sft"]) == []
