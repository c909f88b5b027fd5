"""`posttrain compare A B ...` on folders of a user's choice."""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from posttrain.config.load import load_config, resolved_yaml
from posttrain.config.schema import Flags
from posttrain.errors import UserError
from posttrain.evaluation.compare_command import main, thresholds
from tests.evaluation import fake
from tests.workflow.project import REPOSITORY


def table(folder: Path, name: str = "summary.csv") -> dict[str, dict[str, str]]:
    with (folder / name).open(newline="") as file:
        return {next(iter(row.values())): row for row in csv.DictReader(file)}


@pytest.fixture
def quick(tmp_path: Path) -> Path:
    fake.experiment(tmp_path / "quick", {"ppo": ("ppo", 1.0), "dpo": ("dpo", -1.0)}, count=40)
    return tmp_path / "quick"


def call(*words: Any, resamples: int = 50) -> int:
    return main([*map(str, words), "--bootstrap", str(resamples)])


def test_one_experiment(quick: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(quick, "--output", tmp_path / "out") == 0
    assert list(table(tmp_path / "out")) == ["sft", "dpo", "ppo"]
    assert "report.html is written" in capsys.readouterr().out


def test_each_run_is_measured_against_its_own_sft(
    quick: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.experiment(tmp_path / "other", {"ppo": ("ppo", 0.8)}, count=40)
    sft = tmp_path / "other/eval/sft"
    shutil.rmtree(sft)
    fake.evaluation(sft, "sft", 0.8, count=40)  # as good as its run
    assert call(quick, tmp_path / "other", "--output", tmp_path / "both") == 0
    rows = table(tmp_path / "both")
    assert list(rows) == ["quick/sft", "quick/dpo", "quick/ppo", "other/sft", "other/ppo"]
    assert float(rows["quick/ppo"]["judge_gain_low"]) > 0 > float(rows["other/ppo"]["judge_gain_low"])
    said = capsys.readouterr().out
    assert "its own experiment's SFT model" in said and "quick/ppo" in said
    page = (tmp_path / "both" / "report.html").read_text()
    assert "own experiment&#39;s SFT model" in page and "<h3>other</h3>" in page


def test_seeds_across_folders(tmp_path: Path) -> None:
    folders = []
    for seed in (0, 1, 2):
        folders.append(tmp_path / f"s{seed}")
        fake.experiment(folders[-1], {"ppo": ("ppo", 1.0)}, count=40, seeds={"ppo": seed})
    call(*folders, "--output", tmp_path / "out")
    rows = table(tmp_path / "out", "seeds.csv")
    assert rows["ppo"]["runs"] == "s0/ppo;s1/ppo;s2/ppo" and rows["ppo"]["seeds"] == "3"


def test_what_cannot_be_compared_is_said(quick: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake.experiment(tmp_path / "other", {"ppo": ("ppo", 1.0)}, count=20, judge=None)
    call(quick, tmp_path / "other", "--output", tmp_path / "out")
    said = capsys.readouterr().out
    assert "The judges differ (quick: vader; other: no judge)" in said
    assert "The held-out prompts differ (quick: 40; other: 20, 20 in common)" in said
    page = (tmp_path / "out" / "report.html").read_text()
    assert "The judges differ" in page and "The held-out prompts differ" in page


def test_other_ways_to_sample_are_said(quick: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake.experiment(tmp_path / "other", {"ppo": ("ppo", 1.0)}, count=40)
    for name, folder, temperature in (("sft", quick, 1.0), ("sft", tmp_path / "other", 0.7)):
        evaluation = {"judge": "vader", "temperature": temperature}
        config = {"evaluation": evaluation, "model": {"base": f"{folder.name} base"}}
        fake.record(folder / "eval" / name, "evaluate", name, config)
    call(quick, tmp_path / "other", "--output", tmp_path / "out")
    said = capsys.readouterr().out
    assert "The temperature of the samples differs (quick: 1.0; other: 0.7)" in said
    assert "The base model differs (quick: quick base; other: other base)" in said


def test_equal_judges_and_prompts_need_no_word(quick: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake.experiment(tmp_path / "other", {"ppo": ("ppo", 1.0)}, count=40)
    call(quick, tmp_path / "other", "--output", tmp_path / "out")
    assert "differ" not in capsys.readouterr().out


def test_the_thresholds_are_the_experiment_s(quick: Path, tmp_path: Path) -> None:
    assert thresholds(quick) == Flags()
    config = load_config(REPOSITORY / "configs" / "quick.yaml")
    config = config.model_copy(update={"flags": Flags(most_kl=1.5)})
    (quick / ".state" / "config").mkdir(parents=True)
    (quick / ".state" / "config" / "0123.yaml").write_text(resolved_yaml(config))
    assert thresholds(quick).most_kl == 1.5
    fake.record(quick / "compare", "compare", None, {"flags": Flags(most_kl=0.5).model_dump()})
    assert thresholds(quick).most_kl == 0.5, "those of the finished comparison"
    call(quick, "--output", tmp_path / "out")
    assert "most_kl" in table(tmp_path / "out")["ppo"]["flags"]


def test_an_earlier_comparison_without_flags_is_no_hindrance(quick: Path) -> None:
    fake.record(quick / "compare", "compare", None, {"seed": 0})
    assert thresholds(quick) == Flags()


def test_a_run_that_is_not_evaluated_yet_is_told(
    quick: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.run(quick / "runs" / "grpo", "grpo", "grpo")
    call(quick, "--output", tmp_path / "out")
    assert "grpo of quick is not evaluated yet and left out." in capsys.readouterr().out
    assert list(table(tmp_path / "out")) == ["sft", "dpo", "ppo"]


def test_an_evaluation_of_an_earlier_run_is_refused(quick: Path) -> None:
    manifest = json.loads((quick / "eval/ppo/manifest.json").read_text())
    now = hashlib.sha256((quick / "runs/ppo/manifest.json").read_bytes()).hexdigest()
    (quick / "eval/ppo/manifest.json").write_text(json.dumps({**manifest, "inputs": {"post": now}}))
    call(quick, "--output", quick.parent / "out")
    (quick / "eval/ppo/manifest.json").write_text(json.dumps({**manifest, "inputs": {"post": "0" * 64}}))
    assert "eval/ppo is of an earlier" in refused(quick)
    (quick / "runs/ppo/manifest.json").unlink()  # being made
    assert "eval/ppo is of an earlier" in refused(quick)


def refused(*words: Any) -> str:
    with pytest.raises(UserError) as caught:
        call(*words)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_bad_input_is_one_sentence(quick: Path, tmp_path: Path) -> None:
    assert "nowhere is no folder" in refused(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "has no finished evaluation" in refused(tmp_path / "empty")
    assert "two of the folders are called quick" in refused(quick, quick)
    fake.experiment(tmp_path / "b/quick", {"ppo": ("ppo", 1.0)}, count=40)
    assert "two of the folders are called quick" in refused(quick, tmp_path / "b/quick")
    (tmp_path / "file").write_text("")
    assert "is a file" in refused(quick, "--output", tmp_path / "file")
    assert "is a file" in refused(quick, "--output", tmp_path / "file" / "below")
    with pytest.raises(UserError, match="--bootstrap 0"):
        main([str(quick), "--bootstrap", "0"])
    (tmp_path / "file").unlink()
    fake.record(quick / "compare", "compare", None, {"flags": {"most_charm": 3}})
    assert "flags of another version" in refused(quick)
    (quick / "compare" / "manifest.json").write_text(yaml.safe_dump({"not": "JSON"}))
    assert "manifest.json cannot be read" in refused(quick)
    (quick / "eval/sft/manifest.json").unlink()
    assert "eval/sft is not finished" in refused(quick)


def test_a_finished_stage_is_not_overwritten(quick: Path) -> None:
    fake.record(quick / "compare", "compare", None, {"seed": 0})
    (quick / "compare" / "summary.csv").write_text("of the workflow")
    assert "compare holds a finished stage (manifest.json)" in refused(quick, "--output", quick / "compare")
    assert (quick / "compare" / "summary.csv").read_text() == "of the workflow"
    assert not (quick / "compare" / "report.html").exists()


def test_an_output_that_cannot_be_written_is_one_sentence(quick: Path, tmp_path: Path) -> None:
    assert "--output /proc/none/out cannot be written" in refused(quick, "--output", "/proc/none/out")
    for name in ("report.html", "gains.png", "summary.csv"):
        (tmp_path / name / name).mkdir(parents=True)
        said = refused(quick, "--output", tmp_path / name)
        assert "cannot be written" in said and f"{name}/{name}" in said
