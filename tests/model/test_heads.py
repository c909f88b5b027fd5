"""Reward and value heads: seeded, and blind to padding and to the other rows of a batch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from posttrain.model.batch import collate, token_log_probs
from posttrain.model.heads import RewardModule, SharedTrunk, ValueModule, scalar_head
from posttrain.model.layers import train_last, trunk_of
from posttrain.model.packing import Packing, Row
from tests.model.conftest import FREE
from tests.model.test_batch import assert_same_gradients, gradients
from tests.model.tiny import ARCHITECTURES, WINDOWED, tiny_model

ALL = ARCHITECTURES + WINDOWED


def score_by_hand(module: RewardModule, row: Row) -> float:
    ids = torch.tensor([[*row[0], *row[1]]])
    return (module.trunk(ids).last_hidden_state[0, -1] @ module.score.weight[0]).item()


@pytest.mark.parametrize("arch", ALL)
def test_a_batch_scores_as_its_rows_alone(arch: str, family: list[Row]) -> None:
    module = RewardModule.from_causal_lm(tiny_model(arch), seed=3)
    want = torch.tensor([score_by_hand(module, row) for row in family])
    weights = torch.linspace(-2, 3, len(family))
    single = torch.cat([module(collate([row], 0)) for row in family])
    first = gradients(module, (single * weights).sum())
    for packing in (None, FREE):
        scores = module(collate(family, 9, packing))
        torch.testing.assert_close(scores.detach(), want, atol=1e-5, rtol=0)
        assert_same_gradients(first, gradients(module, (scores * weights).sum()))


@pytest.mark.parametrize("packing", [None, FREE])
@pytest.mark.parametrize("arch", ALL)
def test_values_stand_before_their_token(arch: str, packing: Packing | None, family: list[Row]) -> None:
    module = ValueModule.from_causal_lm(tiny_model(arch), seed=3)
    values = module(collate(family, 0, packing)).detach()
    assert values.shape == (len(family), 14)
    assert values.dtype == torch.float32
    for line, (prompt, response) in enumerate(family):
        hidden = module.trunk(torch.tensor([[*prompt, *response]])).last_hidden_state[0]
        want = hidden[len(prompt) - 1 : -1] @ module.head.weight[0]
        torch.testing.assert_close(values[line, : len(response)], want.detach(), atol=1e-5, rtol=0)
        assert not values[line, len(response) :].any()


@pytest.mark.parametrize("packing", [None, FREE])
@pytest.mark.parametrize("arch", ALL)
def test_one_pass_gives_log_probs_and_values(arch: str, packing: Packing | None, family: list[Row]) -> None:
    model = tiny_model(arch)
    shared = SharedTrunk(model, scalar_head(model.base_model, seed=3))
    apart = ValueModule(shared.trunk, shared.head)
    batch = collate(family, 0, packing)
    passes: list[nn.Module] = []
    handle = shared.trunk.register_forward_hook(lambda module, *_: passes.append(module))
    found = shared(batch, 0.7, with_entropy=True)
    handle.remove()
    assert len(passes) == 1
    log_probs, entropy = token_log_probs(model, batch, 0.7, with_entropy=True)
    want = (log_probs, entropy, apart(batch))
    for one, other in zip(found, want, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    weights = [torch.linspace(-1, 1, values.numel()).view_as(values).roll(i, 1) for i, values in enumerate(want)]

    def loss(values: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return torch.stack([(value * weight).sum() for value, weight in zip(values, weights, strict=True)]).sum()

    first, second = gradients(shared, loss(found)), gradients(shared, loss(want))
    assert "head.weight" in first
    assert_same_gradients(first, second)


def test_a_shared_trunk_is_one_module_with_each_parameter_once() -> None:
    model = tiny_model("llama")
    shared = SharedTrunk(model, scalar_head(model.base_model, seed=3))
    assert trunk_of(shared) is model.base_model
    assert {id(p) for p in shared.parameters()} == {id(p) for p in [*model.parameters(), shared.head.weight]}
    log_probs, entropy, values = shared(collate([([4, 5], [6, 7])], 0))
    assert log_probs.shape == entropy.shape == values.shape == (1, 2)
    assert not entropy.any()
    assert train_last(shared, 1, [shared.head]) == 1
    assert shared.head.weight.requires_grad


def test_a_value_does_not_see_its_own_token() -> None:
    module = ValueModule.from_causal_lm(tiny_model("llama"), seed=0)
    first, second = module(collate([([4, 5], [6, 7]), ([4, 5], [9, 7])], 0))
    torch.testing.assert_close(first[0], second[0])
    assert (first[1] - second[1]).abs() > 1e-5


def test_heads_come_from_the_seed_alone() -> None:
    model = tiny_model("gpt2")
    torch.manual_seed(1)
    first = RewardModule.from_causal_lm(model, seed=3).score.weight
    torch.manual_seed(2)
    assert torch.equal(first, RewardModule.from_causal_lm(model, seed=3).score.weight)
    assert not torch.equal(first, RewardModule.from_causal_lm(model, seed=4).score.weight)
    assert 0.3 / 33 < first.std() < 2 / 33


def test_a_critic_begins_as_the_reward_model(rows: list[Row]) -> None:
    reward = RewardModule.from_causal_lm(tiny_model("qwen2"), seed=0)
    critic = ValueModule.from_reward(reward)
    longer = [(prompt, [*response, 5]) for prompt, response in rows]
    last = torch.tensor([len(response) for _, response in rows])
    values = critic(collate(longer, 0))[torch.arange(4), last]
    torch.testing.assert_close(values, reward(collate(rows, 0)), atol=1e-5, rtol=0)
