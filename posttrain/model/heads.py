"""Scalar heads on a language model's trunk: the reward of a whole sequence, and the critic's value of each token."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from posttrain.model.batch import SequenceBatch, forward
from posttrain.model.layers import trunk_of


class RewardModule(nn.Module):
    """A trunk and a linear `score` of its last real token's hidden state; `forward(batch)` gives [B] float32.

    The last real token is found by the mask, so neither the padding's side nor its id matters.
    """

    trunk: PreTrainedModel
    score: nn.Linear

    def __init__(self, trunk: PreTrainedModel, score: nn.Linear) -> None:
        super().__init__()
        self.trunk = trunk
        self.score = score

    @classmethod
    def from_causal_lm(cls, model: PreTrainedModel, seed: int) -> RewardModule:
        """Takes over the model's trunk (no copy); the score's weights are drawn from `seed`."""
        return cls(trunk_of(model), scalar_head(trunk_of(model), seed))

    def forward(self, batch: SequenceBatch) -> Tensor:
        hidden = _hidden_states(self.trunk, batch)
        columns = torch.arange(hidden.shape[1], device=hidden.device)
        last = (columns * batch.attention_mask).argmax(-1)
        chosen: Tensor = hidden[torch.arange(len(hidden), device=hidden.device), last]
        return self.score(chosen)[:, 0].float()


class ValueModule(nn.Module):
    """A trunk and a linear `head`; `forward(batch)` gives [B, R] float32 values.

    Value t is the estimate *before* response token t is emitted: it stands on the hidden state of the column before.
    Padding has values too: the caller masks them.
    """

    trunk: PreTrainedModel
    head: nn.Linear

    def __init__(self, trunk: PreTrainedModel, head: nn.Linear) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = head

    @classmethod
    def from_causal_lm(cls, model: PreTrainedModel, seed: int) -> ValueModule:
        """Takes over the model's trunk (no copy); the head's weights are drawn from `seed`."""
        return cls(trunk_of(model), scalar_head(trunk_of(model), seed))

    @classmethod
    def from_reward(cls, reward: RewardModule) -> ValueModule:
        """Takes over the reward module's trunk and score (no copy)."""
        return cls(reward.trunk, reward.score)

    def forward(self, batch: SequenceBatch) -> Tensor:
        hidden = _hidden_states(self.trunk, batch)
        before = hidden[:, batch.prompt_width - 1 : -1]
        values: Tensor = self.head(before)[..., 0].float()
        return values


def scalar_head(trunk: PreTrainedModel, seed: int) -> nn.Linear:
    """Linear(hidden, 1) without bias, drawn from `seed` alone, in the trunk's dtype and on its device.

    The standard deviation is 1 / (hidden + 1): scores begin near zero, and with them the reward model's loss near ln 2.
    """
    hidden = trunk.config.hidden_size
    head = nn.Linear(hidden, 1, bias=False)
    generator = torch.Generator().manual_seed(seed)
    nn.init.normal_(head.weight, std=1 / (hidden + 1), generator=generator)
    return head.to(device=trunk.device, dtype=trunk.dtype)


def _hidden_states(trunk: PreTrainedModel, batch: SequenceBatch) -> Tensor:
    states: Tensor = forward(trunk, batch).last_hidden_state
    return states
