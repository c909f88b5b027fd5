"""The online loop: what is generated, scored, learned from and synchronised."""

import math
from itertools import chain, groupby

import pytest
import torch

from posttrain.config.registry import entries, resolve
from posttrain.config.schema import Model
from posttrain.errors import UserError
from posttrain.model.batch import collate
from posttrain.model.load import load_causal_lm
from posttrain.trainer.parts import parts_of
from tests.trainer.harness import EOS, make_stage, make_world, run_stage


def job_of(kind, world, place, **overrides):
    stage = make_stage(kind, world, place, **overrides)
    return resolve(entries(stage.config.run)["job"])(stage, parts_of(stage.config.run, {}))


def samples_of(job, step=1):
    prompts = [job.prompts[i] for i in job.order.rows(step)]
    return job.score(job.rollout.generate(prompts, job.settings.samples_per_prompt, job.sampling, seed=step))


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
@pytest.mark.parametrize("kind", ["ppo", "grpo"])
def test_step_one_is_on_policy(kind, temperature, world, tmp_path):
    """FIELD_RULES 18: the generator, the trainer and the reference agree on every sampled token."""
    job = job_of(kind, world, tmp_path, temperature=temperature)
    experience = job.estimate(samples_of(job))
    assert experience.old is not None and experience.reference is not None
    assert torch.allclose(experience.old, experience.reference, atol=1e-5)
    assert torch.allclose(experience.old, experience.sampled, atol=1e-5)
    assert experience.old[experience.mask].std() > 0.1, "the model must not be flat"


@pytest.mark.parametrize("kind", ["ppo", "grpo"])
def test_step_one_logs_ratio_one_no_kl_and_no_gap(kind, world, tmp_path):
    many = {"minibatch": 100, "epochs": 1}
    stage = run_stage(make_stage(kind, world, tmp_path, steps=2, learning_rate=1e-2, **many))
    first, second = (stage.tracker.steps[step] for step in (1, 2))
    assert first["train/ratio"] == pytest.approx(1, abs=1e-5)
    assert first["train/kl"] == pytest.approx(0, abs=1e-6)
    assert first["rollout/logprob_gap"] == pytest.approx(0, abs=1e-5)
    assert first["train/clipped_low"] == first["train/clipped_high"] == 0
    assert second["train/kl"] > 1e-3, "the policy has moved"
    assert second["rollout/logprob_gap"] == pytest.approx(0, abs=1e-5), "the generator has the new weights"


@pytest.mark.parametrize("kind", ["ppo", "grpo"])
def test_dropout_is_off_for_generator_trainer_reference_and_critic(kind, tmp_path):
    """GPT-2's configuration has it on; a second update makes the old log-probabilities a pass of their own."""
    world = make_world(tmp_path, "gpt2")
    assert load_causal_lm(world / "sft" / "model", Model(base="x"), "cpu").config.attn_pdrop > 0
    stage = run_stage(make_stage(kind, world, tmp_path / "run", steps=1, learning_rate=1e-12, epochs=2, minibatch=3))
    (metrics,) = stage.tracker.steps.values()
    assert metrics["train/ratio"] == pytest.approx(1, abs=1e-5)
    assert metrics["train/kl"] == pytest.approx(0, abs=1e-6)
    assert metrics["rollout/logprob_gap"] == pytest.approx(0, abs=1e-5)
    if kind == "ppo":
        job = job_of(kind, world, tmp_path / "critic")
        assert torch.equal(job.critic.module(batch := collate([([1, 20], [30, 40])], 0)), job.critic.module(batch))


def test_a_step_with_one_update_needs_no_second_forward(world, tmp_path, monkeypatch):
    one = {"epochs": 1, "minibatch": 100}
    single, double = (job_of("grpo", world, tmp_path / name, **one) for name in ("single", "double"))
    monkeypatch.setattr(double, "one_update", lambda rows: False)
    asked = []
    real = single.actor.log_probs
    monkeypatch.setattr(single.actor, "log_probs", lambda rows: asked.append(rows) or real(rows))
    for job in (single, double):
        job.step(1)
    assert not asked
    for name, tensor in single.actor.learner.tensors().items():
        assert torch.allclose(tensor, double.actor.learner.tensors()[name], atol=2e-5), name


@pytest.mark.parametrize(("epochs", "minibatch", "updates"), [(1, 12, 1), (1, 5, 3), (2, 5, 6), (3, 12, 3)])
def test_each_epoch_sees_every_sample_once(epochs, minibatch, updates, world, tmp_path):
    job = job_of("grpo", world, tmp_path, epochs=epochs, minibatch=minibatch)
    groups = [0, 0, 0, 3, 3, 3, 4, 4, 4, 9, 9, 9]
    found = job.minibatches(groups, step=4)
    assert len(found) == updates
    per_epoch = updates // epochs
    orders = [list(chain(*found[i * per_epoch : (i + 1) * per_epoch])) for i in range(epochs)]
    assert all(sorted(order) == list(range(12)) for order in orders)
    assert epochs == 1 or orders[0] != orders[1]
    together = [len(list(rows)) for order in orders for _, rows in groupby(groups[i] for i in order)]
    assert together == [3] * 4 * epochs, "samples of a prompt follow each other"
    assert job.one_update([None] * 12) == (updates == 1)


def test_a_truncated_sample_gets_no_eos_and_pays_the_penalty(world, tmp_path):
    free = job_of("grpo", world, tmp_path / "free")
    strict = job_of("grpo", world, tmp_path / "strict", truncated_penalty=2.5)
    samples = samples_of(free)
    cut = [sample.finish == "length" for sample in samples]
    assert any(cut) and not all(cut)
    for sample in samples:
        assert (EOS in sample.completion_ids) == (sample.finish == "eos")
        assert sample.completion_ids.count(EOS) <= 1
        assert len(sample.completion_ids) == 6 or sample.finish == "eos"
    difference = free.tensors(samples).scores - strict.tensors(samples).scores
    assert difference.tolist() == pytest.approx([2.5 * was_cut for was_cut in cut])
    ends = [ids[-1] for ids in (sample.completion_ids for sample in samples)]
    assert all((end == EOS) != was_cut for end, was_cut in zip(ends, cut, strict=True))


class Judge:
    """A reward model by formula."""

    def __init__(self, rule):
        self.rule = rule

    def score(self, rows):
        return torch.tensor([self.rule(prompt, completion) for prompt, completion in rows], dtype=torch.float32)


def test_samples_without_a_reward_are_left_out_and_counted(world, tmp_path):
    job = job_of("grpo", world, tmp_path, epochs=1, minibatch=100)
    calls = iter(range(1000))
    job.reward = Judge(lambda p, c: [1.0, math.nan, 3.0, math.inf][next(calls) % 4])
    seen = []
    real = job.estimate
    job.estimate = lambda samples: seen.append(real(samples)) or seen[0]
    metrics, _ = job.step(1)
    assert metrics["rollout/excluded"] == 6
    assert metrics["rollout/reward"] == pytest.approx(2.0)
    assert len(seen[0].rows) == 6
    # Two samples are left in each group: rewards 1 and 3, mean 2, unbiased deviation sqrt(2).
    assert seen[0].advantages[:, 0].tolist() == pytest.approx([-1 / math.sqrt(2), 1 / math.sqrt(2)] * 3, rel=1e-4)


@pytest.mark.parametrize(("failing", "limit"), [(6, 0.5), (4, 0.5), (1, 0.0)])
def test_too_many_failed_rewards_are_an_error(world, tmp_path, failing, limit):
    job = job_of("ppo", world, tmp_path, failed_rewards=limit)
    calls = iter(range(6))
    job.reward = Judge(lambda p, c: math.nan if next(calls) < failing else 1.0)
    with pytest.raises(UserError, match=f"{failing} of 6 rewards are no finite numbers.*failed_rewards {limit:g}"):
        job.step(1)


def test_equal_groups_teach_nothing_and_are_counted(world, tmp_path):
    job = job_of("grpo", world, tmp_path, kl_coef=0.0)
    job.reward = Judge(lambda p, c: float(len(p)))
    before = {name: t.clone() for name, t in job.actor.learner.tensors().items() if name.startswith("model/")}
    metrics, _ = job.step(1)
    assert metrics["rollout/equal_groups"] == 1.0
    assert job.reference is None and "train/kl" not in metrics
    assert all(torch.equal(job.actor.learner.tensors()[name], tensor) for name, tensor in before.items())


def test_ppo_rewards_advantages_and_returns_by_hand(world, tmp_path):
    """A brute-force rewrite: KL in the reward, backward recursion, whitening over all tokens."""
    job = job_of("ppo", world, tmp_path, kl_coef=0.3, gamma=0.9, lam=0.8)
    with torch.no_grad():
        for parameter in job.reference.model.parameters():
            parameter.add_(0.02)
    samples = samples_of(job)
    got = job.estimate(samples)
    advantages, returns = [], []
    for i, sample in enumerate(samples):
        length = len(sample.completion_ids)
        rewards = [-0.3 * float(got.old[i, t] - got.reference[i, t]) for t in range(length)]
        rewards[-1] += sample.reward
        values = [*got.values[i, :length].tolist(), 0.0]
        found = [0.0] * (length + 1)
        for t in reversed(range(length)):
            found[t] = rewards[t] + 0.9 * values[t + 1] - values[t] + 0.9 * 0.8 * found[t + 1]
        advantages += found[:length]
        returns += [a + v for a, v in zip(found[:length], values, strict=False)]
    flat = torch.tensor(advantages)
    assert torch.allclose(got.returns[got.mask], torch.tensor(returns), atol=1e-4)
    assert torch.allclose(got.advantages[got.mask], (flat - flat.mean()) / flat.std(), atol=1e-4)
    assert (got.advantages[~got.mask] == 0).all()
    assert (got.reference - got.old)[got.mask].abs().max() > 0.01


def test_the_critic_begins_as_the_reward_model(world, tmp_path):
    job = job_of("ppo", world, tmp_path)
    row = ([1, 20, 30, 40], [50, 60, EOS])
    # The value before the second token stands where the reward of the first alone is read.
    value = job.critic.values([row])[0, 1]
    assert float(value) == pytest.approx(float(job.reward.score([(row[0], row[1][:1])])), abs=1e-5)


def test_generation_counts_versions_and_groups(world, tmp_path):
    job = job_of("grpo", world, tmp_path)
    job.step(1), job.step(2)
    assert job.counters()["rollout"] == {"groups": 6, "version": 2}
    assert job.counters()["buffer"] == {"samples": []}
