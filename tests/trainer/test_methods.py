"""Every method, through its own job: it trains, whatever the micro-batches, and what it keeps survives."""

from __future__ import annotations

import math

import pytest
import torch

from posttrain.config.registry import METHODS
from posttrain.errors import UserError
from posttrain.trainer.objectives.groups import groups_of, teaches
from posttrain.trainer.objectives.online_pairs import best_and_worst
from posttrain.trainer.parts import parts_of
from tests.config.sections import run_of
from tests.trainer.harness import GROUP_RUN, ONLINE_RUN, SETTINGS, make_stage, run_stage
from tests.trainer.test_invariance import WHOLE, check_same, job_of, watch  # noqa: F401
from tests.trainer.test_online import job_of as plain_job

METHOD_NAMES = sorted(METHODS)
SAMPLED = [name for name in METHOD_NAMES if SETTINGS[name] in (ONLINE_RUN, GROUP_RUN)]


@pytest.mark.parametrize("kind", METHOD_NAMES)
def test_it_trains_and_logs_the_common_names(kind, world, tmp_path):
    stage = run_stage(make_stage(kind, world, tmp_path, steps=2, checkpoint_every=2))
    names = {"train/loss", "train/grad_norm", "train/learning_rate", "perf/tokens_per_second"}
    names |= {"rollout/reward", "rollout/length", "rollout/entropy"} if kind in SAMPLED else {"train/accuracy"}
    for metrics in stage.tracker.steps.values():
        assert names <= set(metrics)
        assert all(math.isfinite(value) for value in metrics.values())
        assert metrics["train/grad_norm"] > 0


@pytest.mark.parametrize("kind", sorted(set(METHOD_NAMES) - {"dpo", "kto", "ppo", "grpo"}))  # these: test_invariance.py
def test_micro_batches_change_nothing(kind, world, tmp_path, watch, monkeypatch):  # noqa: F811
    found = []
    for budget in (WHOLE, 40):
        settings = {"epochs": 1, "minibatch": 100} if kind in SAMPLED else {}
        if kind in ("remax", "reinforce++", "raft"):
            settings["prompts_per_step"] = 12
        found.append(watch(job_of(kind, world, tmp_path / str(budget), budget, monkeypatch, **settings)))
    assert found[1].sizes[0] > found[0].sizes[0] == 1
    check_same(*found)


def test_the_reward_shift_is_the_mean_of_all_rewards_before(world, tmp_path):
    stage = run_stage(make_stage("bco", world, tmp_path, steps=4))
    rewards, shifts = stage.metric("train/reward"), stage.metric("train/baseline")
    assert shifts == pytest.approx([0, *(sum(rewards[:n]) / n for n in (1, 2, 3))], abs=1e-6)


def test_groups_that_teach_nothing_are_replaced(world, tmp_path, monkeypatch):
    job = plain_job("dapo", world, tmp_path)
    seen = []
    real = job.reward.score

    def score(rows):
        """The first batch has one group that teaches, later ones all."""
        seen.append(len(rows))
        values = real(rows)
        return torch.cat([values[:4], torch.zeros(len(rows) - 4)]) if len(seen) == 1 else values

    monkeypatch.setattr(job.reward, "score", score)
    samples, metrics = job.collect(1)
    assert len(seen) == metrics["rollout/batches"] == 2
    assert metrics["rollout/equal_groups"] == pytest.approx(2 / 6)
    groups = groups_of(samples)
    assert len(groups) == 3 and all(teaches(group) for group in groups)
    assert len({sample.group for sample in samples}) == 3


def test_where_no_group_teaches_the_step_goes_on(world, tmp_path, monkeypatch):
    job = plain_job("dapo", world, tmp_path, most_batches=2, overlong_buffer=0.0)
    monkeypatch.setattr(job.reward, "score", lambda rows: torch.zeros(len(rows)))
    metrics, _ = job.step(1)
    assert metrics["rollout/batches"] == 2 and metrics["rollout/equal_groups"] == 1
    assert metrics["train/grad_norm"] == 0


def test_the_kl_coefficient_adapts_and_is_kept(world, tmp_path):
    stage = run_stage(make_stage("ppo", world, tmp_path, steps=3, kl_target=1e-9, kl_horizon=60, learning_rate=1e-2))
    coefficients = stage.metric("train/kl_coef")
    assert coefficients[0] == pytest.approx(0.05)
    assert coefficients[2] == pytest.approx(coefficients[1] * (1 + 0.2 * 6 / 60)), "the KL is far over the target"


def test_the_greedy_completion_is_the_baseline(world, tmp_path):
    job = plain_job("remax", world, tmp_path, kl_coef=0.0)
    samples, _ = job.collect(1)
    experience = job.estimate(samples)
    for number, sample in enumerate(samples):
        row = list(sample.prompt_ids)
        for _ in range(job.settings.max_new_tokens):
            with torch.no_grad():
                row.append(int(job.actor.model(torch.tensor([row])).logits[0, -1].argmax()))
            if row[-1] == job.sampling.eos_id:
                break
        greedy = float(job.reward.score([(sample.prompt_ids, row[len(sample.prompt_ids) :])]))
        wanted = sample.reward - greedy
        assert float(experience.advantages[number, 0]) == pytest.approx(wanted, abs=1e-4)


def test_the_best_of_each_group_is_learnt(world, tmp_path):
    job = plain_job("raft", world, tmp_path)
    samples, _ = job.collect(1)
    experience = job.estimate(samples)
    best = [max(group, key=lambda sample: sample.reward) for group in groups_of(samples)]
    assert experience.rows == [(sample.prompt_ids, sample.completion_ids) for sample in best]


def test_a_pair_is_the_best_and_the_worst_of_a_group(world, tmp_path):
    job = plain_job("online_dpo", world, tmp_path)
    samples, _ = job.collect(1)
    experience = job.estimate(samples)
    wanted = []
    for group in groups_of(samples):
        ordered = sorted(group, key=lambda sample: sample.reward)
        wanted += [(each.prompt_ids, each.completion_ids) for each in (ordered[-1], ordered[0])]
    assert experience.rows == wanted
    same = samples[0]
    assert best_and_worst([(same, 1.0), (same, 1.0)]) == best_and_worst([(same, 1.0), (same, 0.0)]) == []


def test_without_a_pair_nothing_is_learnt(world, tmp_path, monkeypatch):
    job = plain_job("online_dpo", world, tmp_path)
    monkeypatch.setattr(job.reward, "score", lambda rows: torch.zeros(len(rows)))
    metrics, tokens = job.step(1)
    assert "train/loss" not in metrics and tokens > 0


def test_long_samples_pay(world, tmp_path):
    job = plain_job("grpo", world, tmp_path, overlong_buffer=0.5, overlong_penalty=2.0)
    samples, _ = job.collect(1)
    paid = torch.tensor([sample.reward for sample in samples]) - job.scores(samples, torch.device("cpu"))
    wanted = [2.0 * max(0, len(sample.completion_ids) - 3) / 3 for sample in samples]
    assert paid.tolist() == pytest.approx(wanted, abs=1e-5)


def test_a_share_of_less_than_a_token_is_one(world, tmp_path):
    job = plain_job("dapo", world, tmp_path, overlong_buffer=0.05)
    samples, _ = job.collect(1)
    paid = torch.tensor([sample.reward for sample in samples]) - job.scores(samples, torch.device("cpu"))
    assert paid.tolist() == pytest.approx([float(len(sample.completion_ids) == 6) for sample in samples], abs=1e-5)
    assert paid.max() > 0


def test_the_generators_log_probs_serve_once_they_are_the_trainers(world, tmp_path, monkeypatch):
    job = plain_job("grpo", world, tmp_path)
    passes = []
    real = job.actor.log_probs
    monkeypatch.setattr(job.actor, "log_probs", lambda rows: passes.append(len(rows)) or real(rows))
    for step in (1, 2):
        job.step(step)
    assert passes == [12], "the first step's own pass, and no other"
    job.gap_is_small = False
    job.step(3)
    assert passes == [12, 12]


OWN = """
import torch

def shifted(log_probs, old, advantages, mask, *, clip_low, shift=0.0):
    ratio = torch.where(mask, log_probs - old, 0.0).exp()
    return torch.where(mask, -advantages * ratio.clamp(min=1 - clip_low) + shift, 0.0), {"ratio": ratio.detach()}

def broken(log_probs, old, advantages, mask):
    raise KeyError("nothing there")

def of_another_shape(log_probs, old, advantages, mask):
    return log_probs.sum(), {}
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "losses.py"
    path.write_text(OWN)
    return path


def test_a_loss_of_ones_own(own, world, tmp_path):
    stage = make_stage(
        "grpo", world, tmp_path, steps=1, policy_loss=f"{own}:shifted", options={"shift": 3.0}, kl_coef=0
    )
    stage.inputs["policy_loss"] = own
    plain = run_stage(make_stage("grpo", world, tmp_path / "plain", steps=1, kl_coef=0))
    assert run_stage(stage).metric("train/loss")[0] == pytest.approx(plain.metric("train/loss")[0] + 3.0, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "wanted"), [("broken", "raised KeyError: 'nothing there'"), ("of_another_shape", "a tensor of shape")]
)
def test_a_faulty_loss_of_ones_own_is_named(name, wanted, own, world, tmp_path):
    stage = make_stage("grpo", world, tmp_path, steps=1, policy_loss=f"{own}:{name}", kl_coef=0)
    stage.inputs["policy_loss"] = own
    with pytest.raises(UserError, match=wanted) as caught:
        run_stage(stage)
    assert f"policy_loss: {own}:{name}" in str(caught.value)


def test_an_argument_that_nobody_gives_is_named(own, tmp_path):
    own.write_text(OWN.replace("shift=0.0", "tau"))
    run = run_of("grpo", policy_loss=f"{own}:shifted")
    with pytest.raises(UserError, match="wants tau; give it in the run's options"):
        parts_of(run, {"policy_loss": own})


def test_a_shared_trunk_gives_the_policys_log_probs_and_the_heads_values(world, tmp_path):
    job = plain_job("ppo", world, tmp_path, shared_trunk=True)
    samples, _ = job.collect(1)
    rows = [(sample.prompt_ids, sample.completion_ids) for sample in samples]
    log_probs, values = job.actor.log_probs_and_values(rows)
    assert torch.allclose(log_probs, job.actor.log_probs(rows), atol=1e-5)
    for number, (prompt, completion) in enumerate(rows):
        with torch.no_grad():
            hidden = job.actor.model.base_model(torch.tensor([[*prompt, *completion]])).last_hidden_state[0]
            alone = job.actor.module.head(hidden)[len(prompt) - 1 : -1, 0]
        assert torch.allclose(values[number, : len(completion)], alone, atol=1e-5)


def test_a_shared_trunk_learns_from_both_losses(world, tmp_path):
    stage = run_stage(
        make_stage("ppo", world, tmp_path, steps=6, shared_trunk=True, value_coef=1.0, learning_rate=3e-3)
    )
    found = stage.metric("train/value_loss")
    assert found[-1] < found[0], "the head learns the returns"
    assert all(metrics["train/loss"] != metrics["train/value_loss"] for metrics in stage.tracker.steps.values())


@pytest.mark.parametrize("budget", [40])
def test_micro_batches_change_nothing_with_a_shared_trunk_and_entropy(budget, world, tmp_path, watch, monkeypatch):  # noqa: F811
    settings = {"shared_trunk": True, "entropy_coef": 0.1, "epochs": 1, "minibatch": 100, "prompts_per_step": 12}
    found = [
        watch(job_of("ppo", world, tmp_path / str(each), each, monkeypatch, **settings)) for each in (WHOLE, budget)
    ]
    assert found[1].sizes[0] > found[0].sizes[0] == 1
    check_same(*found)


@pytest.mark.parametrize("budget", [None, 1e-6])
def test_a_budget_ends_a_run_without_a_price_on_kl(budget, world, tmp_path):
    stage = run_stage(make_stage("opo", world, tmp_path, steps=4, kl_budget=budget, learning_rate=1e-2))
    assert len(stage.tracker.steps) == (4 if budget is None else 2)
