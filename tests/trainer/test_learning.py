"""Tiny models really learn, and every architecture takes steps. Seeds are fixed."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from tests.model.tiny import ARCHITECTURES
from tests.trainer.harness import make_stage, make_world, run_stage
from tests.trainer.test_online import Judge, job_of


def mean(values):
    return sum(values) / len(values)


def test_sft_learns(world, tmp_path):
    stage = run_stage(make_stage("sft", world, tmp_path, steps=60, learning_rate=3e-3, minibatch=16, schedule="cosine"))
    loss = stage.metric("train/loss")
    assert mean(loss[-5:]) < 0.75 * loss[0]
    assert stage.tracker.final["eval/loss"] < loss[0]
    assert stage.metric("train/learning_rate")[-1] < 3e-5


def test_the_reward_model_tells_even_from_odd(world, tmp_path):
    stage = run_stage(make_stage("reward_model", world, tmp_path, steps=60, learning_rate=3e-3, minibatch=16))
    assert mean(stage.metric("train/accuracy")[-5:]) > 0.95
    assert mean(stage.metric("train/loss")[-5:]) < 0.3
    assert 0 <= stage.tracker.final["eval/accuracy"] <= 1


def test_dpo_widens_the_margin(world, tmp_path):
    stage = run_stage(make_stage("dpo", world, tmp_path, steps=40, learning_rate=1e-3, minibatch=16))
    assert stage.metric("train/margin")[0] == pytest.approx(0, abs=1e-5)
    assert mean(stage.metric("train/margin")[-5:]) > 1
    assert mean(stage.metric("train/accuracy")[-5:]) > 0.95


def test_kto_raises_the_good_and_lowers_the_bad(world, tmp_path):
    stage = run_stage(make_stage("kto", world, tmp_path, steps=40, learning_rate=1e-3, minibatch=16))
    assert stage.metric("train/loss")[0] == pytest.approx(0.5, abs=1e-4)
    assert mean(stage.metric("train/loss")[-5:]) < 0.42
    assert mean(stage.metric("train/accuracy")[-5:]) > 0.9
    assert all(value >= 0 for value in stage.metric("train/baseline"))


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("ppo", {"prompts_per_step": 32, "minibatch": 16, "epochs": 2, "critic_learning_rate": 1e-3}),
        ("grpo", {"prompts_per_step": 6, "samples_per_prompt": 8, "minibatch": 24}),
    ],
)
def test_online_methods_raise_a_toy_reward(kind, settings, world, tmp_path):
    """Reward: the share of even ids in the completion."""
    job = job_of(kind, world, tmp_path, steps=25, learning_rate=3e-3, kl_coef=0.01, microbatch_tokens=500, **settings)
    job.reward = Judge(lambda prompt, completion: sum(i % 2 == 0 for i in completion) / len(completion))
    rewards = [job.step(step)[0]["rollout/reward"] for step in range(1, 26)]
    assert mean(rewards[:3]) < 0.65
    assert mean(rewards[-3:]) > mean(rewards[:3]) + 0.2


@pytest.fixture(scope="module", params=ARCHITECTURES)
def architecture(request, tmp_path_factory) -> Path:
    return make_world(tmp_path_factory.mktemp(request.param), request.param)


@pytest.mark.parametrize("kind", ["sft", "reward_model", "dpo", "ppo"])
def test_every_architecture_takes_steps_and_reloads(kind, architecture, tmp_path):
    stage = run_stage(make_stage(kind, architecture, tmp_path, steps=2))
    assert all(value == value for value in stage.metric("train/loss"))
    assert min(stage.metric("train/grad_norm")) > 0
    auto = AutoModelForSequenceClassification if kind == "reward_model" else AutoModelForCausalLM
    trained = auto.from_pretrained(stage.out / "model")
    before = auto.from_pretrained(architecture / ("reward_model" if kind == "reward_model" else "sft") / "model")
    pairs = list(zip(trained.parameters(), before.parameters(), strict=True))
    assert any(not torch.equal(a, b) for a, b in pairs)
