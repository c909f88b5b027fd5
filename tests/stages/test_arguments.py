"""Slips on a stage's command line: nothing is computed, and nothing of the user's is replaced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from posttrain.config.load import parse_config
from posttrain.errors import UserError
from posttrain.stages.arguments import check_input, check_output, check_run

CONFIG = """
experiment: x
data: {sources: [{file: a.txt, form: ratings}]}
model: {base: "built-in: tiny"}
runs: {ppo: {method: ppo}, data: {method: dpo}}
"""
POST = {"post": Path("runs/ppo")}


def write_manifest(folder: Path, stage: str, run: str | None = None) -> Path:
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps({"stage": stage, "run": run, "outputs": {}}))
    return folder


@pytest.mark.parametrize(
    ("stage", "run", "inputs", "words"),
    [
        ("sft", "ppo", {}, "leave --run out"),
        ("post_train", None, {}, "--run is missing: give one of ppo, data"),
        ("post_train", "pqo", {}, "--run pqo: give one of ppo, data"),
        ("post_train", "sft", {}, "give one of ppo, data"),
        ("evaluate", None, {}, "give one of sft, ppo, data"),
        ("evaluate", "sfx", POST, "give one of sft, ppo, data"),
        ("evaluate", "ppo", {"pots": Path("runs/ppo")}, "give --input post=FOLDER"),
        ("evaluate", "sft", POST, "leave --input post out"),
    ],
)
def test_a_wrong_run(stage: str, run: str | None, inputs: dict[str, Path], words: str) -> None:
    config = parse_config(yaml.safe_load(CONFIG), "test")
    with pytest.raises(UserError, match=words):
        check_run(stage, run, config, inputs)


def test_right_runs() -> None:
    config = parse_config(yaml.safe_load(CONFIG), "test")
    check_run("sft", None, config, {})
    check_run("post_train", "data", config, {})
    check_run("evaluate", "sft", config, {})
    check_run("evaluate", "ppo", config, POST)


@pytest.mark.parametrize(
    ("stage", "run", "output", "words"),
    [
        ("sft", None, ".", "results/<experiment>/sft"),
        ("sft", None, "/", "results/<experiment>/sft"),
        ("post_train", "ppo", "ppo", "results/<experiment>/post_train"),
        ("sft", None, "notes.txt", "is a file"),
        ("sft", None, "mine", "other files than sft's"),
        ("sft", None, "results/x/data", "other files than sft's"),
        ("post_train", "dpo", "results/x/runs/ppo", "other files than post_train's"),
    ],
)
def test_a_wrong_output_is_left_as_it_is(
    stage: str, run: str | None, output: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("mine")
    Path("mine").mkdir()
    Path("mine/thesis.txt").write_text("mine")
    write_manifest(Path("results/x/data"), "prepare")
    write_manifest(Path("results/x/runs/ppo"), "post_train", "ppo")
    with pytest.raises(UserError, match=words):
        check_output(stage, run, Path(output))


def test_outputs_that_may_be_replaced(tmp_path: Path) -> None:
    check_output("sft", None, tmp_path / "x/new")
    (tmp_path / "x/empty").mkdir(parents=True)
    check_output("sft", None, tmp_path / "x/empty")
    check_output("sft", None, write_manifest(tmp_path / "x/sft", "sft"))
    left = write_manifest(tmp_path / "x/left", "sft")
    (left / "manifest.json").unlink()  # as Snakemake does before it makes it again
    (left / "run.json").touch()
    check_output("sft", None, left)


@pytest.mark.parametrize(
    ("name", "found", "run", "words"),
    [
        ("pots", {"stage": "post_train", "run": "ppo"}, "ppo", "did you mean post"),
        ("x", {}, None, "one of raw, model, data"),
        ("samples", {"stage": "prepare", "run": None}, None, "is of prepare, not of sample;"),
        ("data", {}, None, "is of no stage, not of prepare;"),
        ("raw", {"stage": "prepare", "run": None}, None, "is of prepare, not of a file;"),
        ("post", {"stage": "post_train", "run": "dpo"}, "ppo", "is of post_train dpo, not of post_train ppo;"),
        ("eval-ppo", {"stage": "evaluate", "run": "dpo"}, None, "is of evaluate dpo, not of evaluate ppo;"),
        ("run-ppo", {"stage": "evaluate", "run": "ppo"}, None, "is of evaluate ppo, not of post_train ppo;"),
    ],
)
def test_a_wrong_input(name: str, found: dict[str, Any], run: str | None, words: str) -> None:
    with pytest.raises(UserError, match=words):
        check_input(name, Path("folder"), found, run)


def test_right_inputs() -> None:
    check_input("raw", Path("data_verified.json"), {}, None)
    check_input("data", Path("data"), {"stage": "prepare", "run": None}, None)
    check_input("sft", Path("sft"), {"stage": "sft", "run": None}, "ppo")
    check_input("post", Path("runs/ppo"), {"stage": "post_train", "run": "ppo"}, "ppo")
    check_input("eval-data", Path("eval/data"), {"stage": "evaluate", "run": "data"}, None)
    check_input("run-data", Path("runs/data"), {"stage": "post_train", "run": "data"}, None)
