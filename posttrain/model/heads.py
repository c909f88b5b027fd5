"""Scalar heads on a language model's trunk: the reward of a whole sequence, and the critic's value of each token."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from posttrain.model.batch import SequenceBatch, forward
from posttrain.model.layers import logits_at, trunk_of
from posttrain.model.logits import selected_log_probs


class RewardModule(nn.Module):
    """A trunk and a linear `score` of its last real token's hidden state; `forward(batch)` gives [B] float32.

    The last real token is found by length, so padding and its id do not matter.
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
        return self.score(_states(self.trunk, batch, batch.last))[:, 0].float()


class ValueModule(nn.Module):
    """A trunk and a linear `head`; `forward(batch)` gives [B, R] float32 values.

    Value t is the estimate *before* response token t is emitted: it stands on the hidden state of the column before.
    Padding has 0.
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
        return batch.spread(self.head(_states(self.trunk, batch, batch.before))[:, 0].float())


class SharedTrunk(nn.Module):
    """A causal language model (`model`) with a linear `head` for values on its trunk: policy and critic in one.

    `forward(batch)` gives log-probabilities, entropies and values, each [b, R] float32 with 0 at padding, of one pass
    through the trunk. Log-probabilities and entropies (0 unless `with_entropy`) are those of `token_log_probs`, values
    those of a `ValueModule`: both stand on the hidden state of the column before their token.
    """

    model: PreTrainedModel
    head: nn.Linear

    def __init__(self, model: PreTrainedModel, head: nn.Linear) -> None:
        super().__init__()
        self.model = model
        self.head = head

    @property
    def trunk(self) -> PreTrainedModel:
        """The part of the model that both heads stand on."""
        return trunk_of(self.model)

    def forward(
        self, batch: SequenceBatch, temperature: float = 1.0, with_entropy: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        with logits_at(self.model, batch.before) as picked:
            logits = forward(self.model, batch).logits.flatten(0, 1)
        log_probs, entropy = selected_log_probs(logits, batch.targets, temperature, with_entropy)
        values = self.head(picked[0])[:, 0].float()
        return batch.spread(log_probs), batch.spread(entropy), batch.spread(values)


def scalar_head(trunk: PreTrainedModel, seed: int) -> nn.Linear:
    """Linear(hidden, 1) without bias, drawn from `seed` alone, in the trunk's dtype and on its device.

    The standard deviation is 1 / (hidden + 1): scores begin near zero, and with them the reward model's loss near ln 2.
    """
    hidden = trunk.config.hidden_size
    head = nn.Linear(hidden, 1, bias=False)
    generator = torch.Generator().manual_seed(seed)
    nn.init.normal_(head.weight, std=1 / (hidden + 1), generator=generator)
    return head.to(device=trunk.device, dtype=trunk.dtype)


def _states(trunk: PreTrainedModel, batch: SequenceBatch, places: Tensor) -> Tensor:
    """The trunk's last hidden states at `places` [M], counted line after line: [M, H]."""
    hidden: Tensor = forward(trunk, batch).last_hidden_state
    return hidden.flatten(0, 1).index_select(0, places)
