"""Roles against the plain model, one row at a time."""

import random

import pytest
import torch

from posttrain.config.runs import PPO
from posttrain.config.schema import SFT
from posttrain.model.heads import RewardModule, ValueModule
from posttrain.roles.actor import Actor
from posttrain.roles.batches import Forward, response_mask
from posttrain.roles.critic import Critic
from posttrain.roles.reference import Reference
from posttrain.roles.reward_model import RewardModel
from tests.model.tiny import tiny_model


def rows(seed=0, number=9):
    """Rows of unequal lengths, three for each prompt."""
    draw = random.Random(seed)
    prompts = [[draw.randrange(3, 200) for _ in range(draw.randint(1, 9))] for _ in range(number // 3)]
    lengths = [draw.randint(1, 8) for _ in range(number)]
    return [(prompts[i % len(prompts)], [draw.randrange(3, 200) for _ in range(n)]) for i, n in enumerate(lengths)]


def plain_log_probs(model, prompt, completion, temperature):
    ids = torch.tensor([prompt + completion])
    with torch.no_grad():
        table = (model(ids).logits[0] / temperature).log_softmax(-1)
    return [float(table[len(prompt) - 1 + i, token]) for i, token in enumerate(completion)]


@pytest.mark.parametrize("budget", [1, 60, 10_000])
def test_log_probs_are_those_of_each_row_alone(budget):
    model, chosen = tiny_model("llama"), rows()
    forward = Forward(0, budget, temperature=0.7)
    for role in (Actor(model, SFT(), forward, 0), Reference(model, forward)):
        found = role.log_probs(chosen)
        assert found.shape == (9, max(len(c) for _, c in chosen))
        for line, (prompt, completion) in zip(found, chosen, strict=True):
            assert line[: len(completion)].tolist() == pytest.approx(
                plain_log_probs(model, prompt, completion, 0.7), abs=2e-5
            )
            assert line[len(completion) :].abs().sum() == 0


def test_values_and_scores_do_not_depend_on_the_batch():
    chosen = rows()
    value = ValueModule.from_causal_lm(tiny_model("llama", seed=1), seed=2)
    judge = RewardModule.from_causal_lm(tiny_model("llama", seed=3), seed=4)
    settings = PPO(method="ppo")
    values = [Critic(value, settings, 1.0, Forward(0, budget), 0).values(chosen) for budget in (1, 10_000)]
    scores = [RewardModel(judge, Forward(0, budget)).score(chosen) for budget in (1, 10_000)]
    assert torch.allclose(*values, atol=1e-5) and values[0].abs().sum() > 0
    assert torch.allclose(*scores, atol=1e-5) and scores[0].std() > 0
    assert (values[0][~response_mask(chosen, "cpu")] == 0).all()


def test_values_do_not_see_the_temperature():
    chosen = rows()
    value = ValueModule.from_causal_lm(tiny_model("llama", seed=1), seed=2)
    cold, hot = (Critic(value, SFT(), 1.0, Forward(0, 100, temperature=t), 0).values(chosen) for t in (0.5, 2.0))
    assert torch.equal(cold, hot)


def test_weights_stream_once_each_with_tied_ones():
    model = tiny_model("llama")
    names = [name for name, _ in Actor(model, SFT(), Forward(0, 10), 0).stream_weights()]
    assert len(names) == len(set(names)) == len(list(model.parameters()))
    assert "lm_head.weight" not in names, "tied to the embedding"
