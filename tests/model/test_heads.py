"""Reward and value heads: seeded, and blind to padding and to the other rows of a batch."""

from __future__ import annotations

import pytest
import torch

from posttrain.model.batch import Row, SequenceBatch, collate, positions
from posttrain.model.heads import RewardModule, ValueModule
from tests.model.test_batch import assert_same_gradients, gradients, padded
from tests.model.tiny import ARCHITECTURES, WINDOWED, tiny_model

ALL = ARCHITECTURES + WINDOWED


def sided(rows: list[Row], side: str) -> SequenceBatch:
    """The rows as whole sequences with all their padding on one side."""
    width = max(len(p) + len(r) for p, r in rows)
    ids, mask = torch.zeros(len(rows), width, dtype=torch.int64), torch.zeros(len(rows), width, dtype=torch.int64)
    for line, (prompt, response) in enumerate(rows):
        count = len(prompt) + len(response)
        span = slice(width - count, width) if side == "left" else slice(count)
        ids[line, span] = torch.tensor([*prompt, *response])
        mask[line, span] = 1
    return SequenceBatch(ids, mask, mask[:, 1:].bool(), positions(mask), 1, tuple(range(len(rows))))


def score_by_hand(module: RewardModule, row: Row) -> float:
    ids = torch.tensor([[*row[0], *row[1]]])
    return (module.trunk(ids).last_hidden_state[0, -1] @ module.score.weight[0]).item()


@pytest.mark.parametrize("arch", ALL)
def test_a_batch_scores_as_its_rows_alone(arch: str, rows: list[Row]) -> None:
    module = RewardModule.from_causal_lm(tiny_model(arch), seed=3)
    want = torch.tensor([score_by_hand(module, row) for row in rows])
    whole = collate(rows, 0)
    for batch in (whole, padded(whole, 2, 3, pad_id=9), sided(rows, "left"), sided(rows, "right")):
        torch.testing.assert_close(module(batch), want, atol=1e-5, rtol=0)
    weights = torch.tensor([1.0, -2.0, 0.5, 3.0])
    first = gradients(module, (module(whole) * weights).sum())
    single = torch.cat([module(collate(rows, 0, [i])) for i in range(4)])
    assert_same_gradients(first, gradients(module, (single * weights).sum()))


@pytest.mark.parametrize("arch", ALL)
def test_values_stand_before_their_token(arch: str, rows: list[Row]) -> None:
    module = ValueModule.from_causal_lm(tiny_model(arch), seed=3)
    values = module(collate(rows, 0)).detach()
    assert values.shape == (4, 12)
    assert values.dtype == torch.float32
    for line, (prompt, response) in enumerate(rows):
        hidden = module.trunk(torch.tensor([[*prompt, *response]])).last_hidden_state[0]
        want = hidden[len(prompt) - 1 : -1] @ module.head.weight[0]
        torch.testing.assert_close(values[line, : len(response)], want.detach(), atol=1e-5, rtol=0)


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
