import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.trainer.harness import digests, make_stage, run_stage

NAMES = {
    "train/loss",
    "train/grad_norm",
    "train/learning_rate",
    "perf/tokens_per_second",
    "perf/step_seconds",
}
PREFERENCE = {"train/accuracy", "train/margin"}
ONLINE = {"train/kl", "rollout/reward", "rollout/length", "rollout/truncated", "rollout/logprob_gap"}


@pytest.mark.parametrize("method", ["dpo", "kto", "ppo", "grpo"])
def test_metrics_have_the_common_names_and_the_model_reloads(method, world, tmp_path):
    stage = run_stage(make_stage(method, world, tmp_path, steps=2))
    wanted = NAMES | (PREFERENCE if method in ("dpo", "kto") else ONLINE)
    assert wanted <= stage.tracker.steps[1].keys()
    assert all(isinstance(value, float) for value in stage.tracker.steps[2].values())
    before = AutoModelForCausalLM.from_pretrained(world / "sft" / "model")
    after = AutoModelForCausalLM.from_pretrained(stage.out / "model")
    moved = [(a - b).detach().abs().max() for a, b in zip(after.parameters(), before.parameters(), strict=True)]
    assert 0 < float(torch.stack(moved).max()) < 1e-3, "two steps of AdamW at 1e-4"


@pytest.mark.parametrize("method", ["kto", "ppo"])
def test_half_precision(method, world, tmp_path):
    stages = []
    for name in ("a", "b"):
        stage = make_stage(method, world, tmp_path / name, steps=3)
        stage.config.model = stage.config.model.model_copy(update={"dtype": "bfloat16"})
        stages.append(run_stage(stage))
    assert digests(stages[0].out) == digests(stages[1].out)
    model = AutoModelForCausalLM.from_pretrained(stages[0].out / "model", dtype="auto")
    assert model.dtype == torch.bfloat16
