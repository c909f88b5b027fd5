"""The stage evaluate on tiny models: its files, its pairing, and a kill in the middle."""

from __future__ import annotations

import json
import logging
import math
import multiprocessing
import os
import random
import shutil
import signal
import statistics
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

from posttrain.config.schema import Evaluation, Model
from posttrain.data.tables import PROMPTS, read_table, write_table
from posttrain.errors import Interrupted, UserError
from posttrain.evaluation import scoring
from posttrain.model.export import export_model, export_reward_module
from posttrain.model.heads import RewardModule
from posttrain.model.layers import decoder_layers, layer_digests
from posttrain.stages import evaluate
from posttrain.tracking.metrics_file import read_lines
from posttrain.tracking.tracker import Tracker
from tests.model.tiny import tiny_model
from tests.trainer.harness import digests, make_world

SETTINGS = {"prompts": 20, "max_new_tokens": 6, "generation_batch": 4, "bootstrap": 100}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """data/ with 30 test prompts, sft/, reward_model/, and post/ and base/, models of their own."""
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
    for name, seed in (("post", 7), ("base", 8)):
        export_model(tiny_model("llama", seed=seed), folder / "data" / "tokenizer", folder / name / "model")
    return folder


def make_stage(
    world: Path,
    place: Path,
    name: str,
    interrupted: Callable[[], bool] = lambda: False,
    model: dict[str, Any] | None = None,
    **changed: Any,
) -> Any:
    inputs = {key: world / key for key in ("data", "sft", "reward_model")} | {"model": world / "base"}
    if name != "sft":
        inputs["post"] = world / "post"
    for folder in ("out", "state"):
        (place / folder).mkdir(parents=True, exist_ok=True)
    return SimpleNamespace(
        name="evaluate",
        run_name=name,
        config=SimpleNamespace(
            model=Model(**{"base": "a folder", **(model or {})}), evaluation=Evaluation(**{**SETTINGS, **changed})
        ),
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


def log_prob(folder: Path, row: dict[str, Any], temperature: float) -> float:
    """log p of a completion in float64, one row at a time, by transformers alone."""
    model = AutoModelForCausalLM.from_pretrained(folder / "model").double()
    with torch.no_grad():
        logits = model(torch.tensor([row["prompt_ids"] + row["completion_ids"]])).logits[0]
    first = len(row["prompt_ids"]) - 1
    every = (logits / temperature).log_softmax(-1)
    return float(sum(every[first + place, token] for place, token in enumerate(row["completion_ids"])))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_every_score_is_that_of_the_row(world: Path, tmp_path: Path, temperature: float) -> None:
    stage = make_stage(world, tmp_path, "ppo", temperature=temperature, judge="vader")
    evaluate.run(stage)
    rows = read_table(stage.out / "samples.parquet").to_dict("records")
    analyzer = SentimentIntensityAnalyzer()
    scorer = AutoModelForSequenceClassification.from_pretrained(world / "reward_model" / "model")
    for row in rows[:8]:
        ours, theirs = (log_prob(world / name, row, temperature) for name in ("post", "sft"))
        assert row["kl"] == pytest.approx(ours - theirs, abs=1e-3)
        assert row["base_log_prob"] == pytest.approx(log_prob(world / "base", row, 1.0), abs=1e-3)
        assert row["judge"] == analyzer.polarity_scores(row["text"])["compound"]
        with torch.no_grad():
            reward = float(scorer(torch.tensor([row["prompt_ids"] + row["completion_ids"]])).logits)
        assert row["reward"] == pytest.approx(reward, abs=1e-4)
    metrics = json.loads((stage.out / "metrics.json").read_text())
    tokens = sum(len(row["completion_ids"]) for row in rows)
    perplexity = math.exp(-sum(row["base_log_prob"] for row in rows) / tokens)
    assert metrics["eval/perplexity"]["value"] == pytest.approx(perplexity)
    kl = [row["kl"] for row in rows]
    assert metrics["eval/kl_error"]["value"] == pytest.approx(statistics.stdev(kl) / math.sqrt(20))
    logged = [line.values for line in read_lines(stage.tracker.path) if line.step is not None]
    gaps = [values["rollout/logprob_gap"] for values in logged if "rollout/logprob_gap" in values]
    assert len(gaps) == 5 and max(gaps) < 1e-4
    means = [values["rollout/reward"] for values in logged if "rollout/reward" in values]
    assert means == pytest.approx([statistics.fmean(row["reward"] for row in rows[i : i + 4]) for i in range(0, 20, 4)])


def test_a_users_judge_is_given_by_its_file(world: Path, tmp_path: Path) -> None:
    stage = make_stage(world, tmp_path, "ppo", judge="mine.py:score")
    stage.inputs["judge"] = tmp_path / "mine.py"
    stage.inputs["judge"].write_text("def score(prompts, completions): return [float(p[7:]) for p in prompts]")
    evaluate.run(stage)
    table = read_table(stage.out / "samples.parquet")
    assert list(table["judge"]) == [float(row["id"].removeprefix("row")) for row in table.to_dict("records")]
    stage = make_stage(world, tmp_path / "again", "ppo", judge="mine.py:other")
    stage.inputs["judge"] = tmp_path / "mine.py"
    with pytest.raises(UserError, match=r"mine\.py has no function other"):
        evaluate.run(stage)


def test_without_a_judge_and_a_trained_base(world: Path, tmp_path: Path) -> None:
    stage = make_stage(world, tmp_path, "ppo", model={"base": "built-in: tiny"})
    stage.inputs["model"] = tmp_path / "no model there"
    evaluate.run(stage)
    table = read_table(stage.out / "samples.parquet")
    assert table["judge"].isna().all() and table["base_log_prob"].isna().all()
    metrics = json.loads((stage.out / "metrics.json").read_text())
    assert not {"eval/judge", "eval/perplexity"} & metrics.keys() and "eval/kl" in metrics


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sft_and_runs_share_prompts_and_random_numbers(world: Path, tmp_path: Path, dtype: str) -> None:
    precision = {"dtype": dtype}
    stages = [make_stage(world, tmp_path / name, name, model=precision) for name in ("sft", "ppo")]
    same = make_stage(world, tmp_path / "same", "same", model=precision)
    same.inputs["post"] = shutil.copytree(world / "sft", tmp_path / "unchanged")  # a run that learned nothing
    for stage in (*stages, same):
        evaluate.run(stage)
    sft, run, copy = (read_table(stage.out / "samples.parquet") for stage in (*stages, same))
    assert list(sft["id"]) == list(run["id"]) and list(sft["completion_ids"]) != list(run["completion_ids"])
    assert sft.equals(copy)
    assert (sft["kl"] == 0).all() and (run["kl"] != 0).all()
    metrics = json.loads((same.out / "metrics.json").read_text())
    assert metrics["eval/kl"] == {"value": 0.0, "low": 0.0, "high": 0.0, "n": 20}
    assert metrics["eval/kl_error"]["value"] == 0


def test_a_run_is_scored_by_a_model_of_its_own_once_more(world: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """What the test above says would hold as well if the reference were never asked."""
    asked: list[str] = []
    for module, names in ((evaluate, ["load_causal_lm"]), (scoring, ["load_causal_lm", "load_reward_module"])):
        for name in names:
            monkeypatch.setattr(module, name, noting(asked, getattr(module, name)))
    looked = ["reward_model", "post"]  # for layers that they share
    evaluate.run(make_stage(world, tmp_path / "run", "ppo"))
    assert asked == ["post", "post", *looked, "sft", "reward_model", "base"]
    asked.clear()
    evaluate.run(make_stage(world, tmp_path / "sft", "sft"))
    assert asked == ["sft", "sft", "reward_model", "sft", "reward_model", "base"]
    asked.clear()
    evaluate.run(make_stage(world, tmp_path / "sft", "sft"))
    assert asked == [], "what is finished needs no model"


def noting(asked: list[str], load: Callable[..., Any]) -> Callable[..., Any]:
    def loading(folder: Path, *settings: Any) -> Any:
        asked.append(folder.parent.name)
        return load(folder, *settings)

    return loading


def related(world: Path, folder: Path) -> Path:
    """The world with models that differ in their last layer alone, but for `base`, which has nothing in common."""
    shutil.copytree(world, folder)
    for seed, (name, head) in enumerate([("sft", ""), ("post", ""), ("reward_model", "trunk.")]):
        model = tiny_model("llama", seed=3)
        torch.manual_seed(seed)
        for parameter in decoder_layers(model)[-1].parameters():
            parameter.data += 0.2 * torch.randn_like(parameter)
        shutil.rmtree(folder / name)
        module = RewardModule.from_causal_lm(model, seed=0) if head else model
        (export_reward_module if head else export_model)(module, folder / "data" / "tokenizer", folder / name / "model")
    return folder


def test_layers_that_models_share_work_once(world: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """And every number is what it is without that, also for the model that does not share them."""
    folder = related(world, tmp_path / "related")
    first: list[int] = []  # rows that went through a first layer; the probes of the attention mask have other numbers
    sizes = (SETTINGS["prompts"], SETTINGS["generation_batch"])
    run = LlamaDecoderLayer.forward

    def counting(layer: Any, hidden: Any, *rest: Any, **more: Any) -> Any:
        if layer.self_attn.layer_idx == 0 and more.get("past_key_values") is None and len(hidden) in sizes:
            first.append(len(hidden))
        return run(layer, hidden, *rest, **more)

    monkeypatch.setattr(LlamaDecoderLayer, "forward", counting)
    passes = {}
    for name, digests_of in (("shared", layer_digests), ("apart", lambda module: [])):
        monkeypatch.setattr(scoring, "layer_digests", digests_of)
        first.clear()
        evaluate.run(make_stage(folder, tmp_path / name, "ppo"))
        passes[name] = sorted(first)
    shared, apart = (read_table(tmp_path / name / "out" / "samples.parquet") for name in ("shared", "apart"))
    assert list(shared["completion_ids"]) == list(apart["completion_ids"]) and (shared["kl"] != 0).all()
    for column in ("kl", "reward", "base_log_prob"):
        assert list(shared[column]) == pytest.approx(list(apart[column]), abs=1e-4)
    assert passes == {"shared": [4] * 5 + [20], "apart": [4] * 5 * 4}, "once for all rows, and for the base model"


@pytest.mark.parametrize("asks", [3, 9])
def test_a_stop_keeps_what_was_finished(
    world: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, asks: int
) -> None:
    """In the first pass and in the second: steps are batches of all passes."""
    asked = iter([*[False] * (asks - 1), True])
    with pytest.raises(Interrupted):
        evaluate.run(make_stage(world, tmp_path / "a", "ppo", lambda: next(asked)))
    with caplog.at_level(logging.INFO):
        evaluate.run(make_stage(world, tmp_path / "a", "ppo"))
    assert [record.args for record in caplog.records if record.msg == "resumed at step %d"] == [(asks - 1,)]
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
    for kill_at in (4, 13, 0):
        process = context.Process(target=_attempt, args=(world, tmp_path / "killed", kill_at))
        process.start()
        process.join(120)
        codes.append(process.exitcode)
    assert codes == [-signal.SIGKILL, -signal.SIGKILL, 0]
    lines = (tmp_path / "log").read_text().splitlines()
    assert [line for line in lines if line.startswith("resumed")] == ["resumed at step 3", "resumed at step 15"]
    assert lines.count("work") == 5 * 5, "nothing was done twice"
    stage = make_stage(world, tmp_path / "whole", "ppo")
    evaluate.run(stage)
    assert digests(stage.out) == digests(tmp_path / "killed" / "out")
