"""The stage evaluate on tiny models: its files, its pairing, and a kill in the middle."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from posttrain.config.schema import Evaluation, Model
from posttrain.data.tables import PROMPTS, read_table, write_table
from posttrain.errors import Interrupted
from posttrain.model.export import export_model
from posttrain.stages import evaluate
from posttrain.tracking.metrics_file import read_lines
from posttrain.tracking.tracker import Tracker
from tests.model.tiny import tiny_model
from tests.trainer.harness import digests, make_world

SETTINGS = {"prompts": 20, "max_new_tokens": 6, "generation_batch": 4, "bootstrap": 100}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """data/ with 30 test prompts, sft/, reward_model/ and post/, a model of its own."""
    folder = make_world(tmp_path_factory.mktemp("world"))
    draw = random.Random(1)
    rows = [
        {
            "id": f"row{i}",
            "split": "test" if i % 2 else "train",
            "prompt_ids": [1, *(draw.randrange(10, 200) for _ in range(draw.randrange(1, 7)))],
            "text": f"prompt {i}",
        }
        for i in range(60)
    ]
    write_table(folder / "data" / "prompts.parquet", rows, PROMPTS)
    export_model(tiny_model("llama", seed=7), folder / "data" / "tokenizer", folder / "post" / "model")
    return folder


def make_stage(
    world: Path, place: Path, name: str, interrupted: Callable[[], bool] = lambda: False, **changed: Any
) -> Any:
    inputs = {key: world / key for key in ("data", "sft", "reward_model")}
    if name != "sft":
        inputs["post"] = world / "post"
    for folder in ("out", "state"):
        (place / folder).mkdir(parents=True, exist_ok=True)
    return SimpleNamespace(
        name="evaluate",
        run_name=name,
        config=SimpleNamespace(model=Model(base="a folder"), evaluation=Evaluation(**{**SETTINGS, **changed})),
        inputs=inputs,
        out=place / "out",
        state=place / "state",
        seed=3,
        device="cpu",
        log=logging.getLogger("posttrain.evaluate"),
        tracker=Tracker(place / "state"),
        interrupted=interrupted,
    )


def test_the_files_of_a_run(world: Path, tmp_path: Path) -> None:
    stage = make_stage(world, tmp_path, "ppo")
    evaluate.run(stage)
    assert sorted(digests(stage.out)) == ["metrics.json", "samples.parquet"]
    table = read_table(stage.out / "samples.parquet")
    assert len(table) == 20 and table["id"].is_unique
    assert all(int(key.removeprefix("row")) % 2 for key in table["id"]), "only the test split"
    for row in table.to_dict("records"):
        ids = row["completion_ids"]
        assert (ids[-1] == 2) == (row["finish"] == "eos") and (row["finish"] == "eos" or len(ids) == 6)
        assert row["prompt"] == f"prompt {row['id'].removeprefix('row')}"
    metrics = json.loads((stage.out / "metrics.json").read_text())
    assert metrics["eval/reward"]["value"] == pytest.approx(table["reward"].mean())
    assert metrics["eval/kl"]["value"] == pytest.approx(table["kl"].mean()) and metrics["eval/kl"]["value"] > 0.1
    assert metrics["eval/kl"]["n"] == 20
    final = {
        name: value
        for line in read_lines(stage.tracker.path)
        if line.step is None
        for name, value in line.values.items()
    }
    assert final == {name: found["value"] for name, found in metrics.items()}


def test_sft_and_runs_share_prompts_and_random_numbers(world: Path, tmp_path: Path) -> None:
    stages = [make_stage(world, tmp_path / name, name) for name in ("sft", "ppo")]
    same = make_stage(world, tmp_path / "same", "same")
    same.inputs["post"] = world / "sft"  # a run that changed nothing
    for stage in (*stages, same):
        evaluate.run(stage)
    sft, run, copy = (read_table(stage.out / "samples.parquet") for stage in (*stages, same))
    assert list(sft["id"]) == list(run["id"]) and list(sft["completion_ids"]) != list(run["completion_ids"])
    assert sft.equals(copy)
    assert sft["kl"].abs().max() < 1e-4


def test_a_stop_keeps_what_was_finished(world: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    asked = iter([False, False, True])
    with pytest.raises(Interrupted):
        evaluate.run(make_stage(world, tmp_path / "a", "ppo", lambda: next(asked)))
    with caplog.at_level(logging.INFO):
        evaluate.run(make_stage(world, tmp_path / "a", "ppo"))
    assert "resumed at step 2" in caplog.text
    evaluate.run(make_stage(world, tmp_path / "b", "ppo"))
    assert digests(tmp_path / "a" / "out") == digests(tmp_path / "b" / "out")


def _attempt(world: Path, place: Path, kill_at: int) -> None:
    logging.basicConfig(filename=place.parent / "log", level=logging.INFO, format="%(message)s")
    asked = 0

    def interrupted() -> bool:
        nonlocal asked
        asked += 1
        if asked == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        logging.info("work")
        return False

    evaluate.run(make_stage(world, place, "ppo", interrupted))


def test_kill_9_in_the_middle(world: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["posttrain.stages.evaluate"])
    codes = []
    for kill_at in (4, 0):
        process = context.Process(target=_attempt, args=(world, tmp_path / "killed", kill_at))
        process.start()
        process.join(120)
        codes.append(process.exitcode)
    assert codes == [-signal.SIGKILL, 0]
    lines = (tmp_path / "log").read_text().splitlines()
    assert "resumed at step 3" in lines and lines.count("work") < 1.3 * 5
    stage = make_stage(world, tmp_path / "whole", "ppo")
    evaluate.run(stage)
    assert digests(stage.out) == digests(tmp_path / "killed" / "out")
