"""The split into micro-batches decides nothing: loss, gradients and logged metrics are those of the whole minibatch."""

import importlib
from dataclasses import dataclass

import pytest
import torch

from posttrain.roles.learner import Learner
from posttrain.rollout.buffer import Sample
from posttrain.trainer.online import OnlineJob
from posttrain.trainer.supervised import SupervisedTokens
from tests.trainer.harness import make_stage

WHOLE = 1_000_000
KINDS = ("sft", "reward_model", "dpo", "kto", "ppo", "grpo")
SPLITS = (1, 35, 60, 90)


@dataclass
class Seen:
    metrics: dict[str, float]
    gradients: list[dict[str, torch.Tensor]]
    sizes: list[int]


@pytest.fixture
def watch(monkeypatch):
    """Collects the gradients of every optimiser step, before clipping, and the number of micro-batches it had."""
    gradients, sizes = [], []
    step, collect = Learner._step, Learner._collect

    def spy_collect(self):
        self.pieces = getattr(self, "pieces", 0) + 1
        collect(self)

    def spy(self, rate):
        gradients.append({name: p.grad.clone() for name, p in self._masters.items() if p.grad is not None})
        sizes.append(self.pieces)
        self.pieces = 0
        return step(self, rate)

    monkeypatch.setattr(Learner, "_step", spy)
    monkeypatch.setattr(Learner, "_collect", spy_collect)

    def run(job):
        gradients.clear(), sizes.clear()
        metrics, _ = job.step(1)
        return Seen(metrics, list(gradients), list(sizes))

    return run


def job_of(kind, world, place, budget, monkeypatch, **overrides):
    """The job that the stage would train, with minibatches of 12; a single optimiser step in the online methods."""
    online = {"epochs": 1, "prompts_per_step": 12, "minibatch": 100} if kind == "ppo" else {}
    online = {"epochs": 1, "minibatch": 100} if kind == "grpo" else online
    settings = {"minibatch": 12, "microbatch_tokens": budget, **online, **overrides}
    stage = make_stage(kind, world, place, **settings)
    made = []
    module = importlib.import_module(f"posttrain.stages.{kind if kind in ('sft', 'reward_model') else 'post_train'}")

    class CaughtError(Exception):
        pass

    def catch(context, section, job):
        made.append(job)
        raise CaughtError

    monkeypatch.setattr(module, "Trainer", catch)
    with pytest.raises(CaughtError):
        module.run(stage)
    separate(made[0])
    return made[0]


def separate(job):
    """Moves policy and reference apart: where they are equal, rewards of preference methods and the KL are rounding."""
    reference = job.reference if isinstance(job, OnlineJob) else None
    model = reference.model if reference else job.actor.model if hasattr(job, "actor") else None
    if model is not None:
        noise = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=noise), alpha=0.02)


def check_same(a, b):
    for name in a.metrics:
        if not name.startswith("perf/"):
            assert a.metrics[name] == pytest.approx(b.metrics[name], rel=2e-4, abs=2e-6), name
    assert len(a.gradients) == len(b.gradients)
    for first, second in zip(a.gradients, b.gradients, strict=True):
        scale = max(float(g.abs().max()) for g in first.values())
        assert scale > 0
        for name, gradient in first.items():
            assert torch.allclose(gradient, second[name], rtol=1e-3, atol=2e-5 * scale), name


@pytest.mark.parametrize("kind", KINDS)
def test_every_split_gives_the_minibatch(kind, world, tmp_path, watch, monkeypatch):
    whole = watch(job_of(kind, world, tmp_path / "whole", WHOLE, monkeypatch))
    assert set(whole.sizes) == {1}
    counts = set()
    for budget in SPLITS:
        parts = watch(job_of(kind, world, tmp_path / str(budget), budget, monkeypatch))
        check_same(whole, parts)
        counts.add(parts.sizes[0])
    assert len(counts) > 2 and max(counts) == 12, "the splits must be different ones, one of them rows alone"


@pytest.mark.parametrize("mode", ["token-mean", "sequence-mean"])
def test_both_aggregations_and_the_kl_term(mode, world, tmp_path, watch, monkeypatch):
    found = []
    for budget in (WHOLE, 1, 60):
        settings = {"aggregation": mode, "kl_coef": 5.0}
        found.append(watch(job_of("grpo", world, tmp_path / str(budget), budget, monkeypatch, **settings)))
    assert found[0].metrics["train/kl"] > 1e-3, "the KL term must count"
    check_same(found[0], found[1])
    check_same(found[0], found[2])


def mean_of_means(values, mask, mode="token-mean", *, count):
    return values[mask].mean() if mask.any() else values.sum() * 0


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("sft", "posttrain.trainer.supervised"),
        ("reward_model", "posttrain.trainer.metrics"),
        ("dpo", "posttrain.trainer.metrics"),
        ("kto", "posttrain.trainer.metrics"),
        ("grpo", "posttrain.trainer.policy_gradient"),
        ("ppo", "posttrain.trainer.policy_gradient"),
        ("ppo", "posttrain.trainer.objectives.actor_critic"),
    ],
)
def test_a_wrong_normaliser_is_found(kind, place, world, tmp_path, watch, monkeypatch):
    monkeypatch.setattr(f"{place}.aggregate", mean_of_means)
    whole = watch(job_of(kind, world, tmp_path / "whole", WHOLE, monkeypatch))
    parts = watch(job_of(kind, world, tmp_path / "parts", 60, monkeypatch))
    with pytest.raises(AssertionError):
        check_same(whole, parts)


def test_an_all_masked_micro_batch_of_sft_changes_nothing(world, tmp_path, watch, monkeypatch):
    job = job_of("sft", world, tmp_path, 1, monkeypatch)
    rows = job.rows[:6]
    made = [
        SupervisedTokens(job.actor.model, chosen, job_settings(world, tmp_path, len(chosen)), job.actor.forward, 0)
        for chosen in (rows, [*rows, ([1, 5, 6], [])])
    ]
    state = {name: tensor.clone() for name, tensor in job.actor.learner.tensors().items()}
    found = []
    for one in made:
        one.actor.learner.load(state)
        found.append(watch(one))
    assert found[1].sizes == [found[0].sizes[0] + 1]
    check_same(*found)


def job_settings(world, tmp_path, minibatch):
    return make_stage("sft", world, tmp_path, minibatch=minibatch, microbatch_tokens=1).config.sft


@pytest.mark.parametrize("kind", ["ppo", "grpo"])
def test_an_all_masked_micro_batch_of_online_training_changes_nothing(kind, world, tmp_path, watch, monkeypatch):
    empty = Sample("empty", 99, 0, [1, 5, 6], [], [], "length", 0, reward=3.0)
    found = []
    for budget, extra in ((WHOLE, []), (1, [empty])):
        job = job_of(kind, world, tmp_path / str(budget), budget, monkeypatch)
        real = job.score
        monkeypatch.setattr(job, "score", lambda samples, real=real, extra=extra: [*real(samples), *extra])
        found.append(watch(job))
    assert found[1].sizes[0] == 13
    for seen in found:
        seen.metrics.pop("rollout/equal_groups", None)
    check_same(*found)
