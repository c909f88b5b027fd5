"""The critic's loss."""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.algorithms.aggregate import zero_masked


def clipped_value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, *, value_clip: float
) -> Tensor:
    """Loss per token: max((V - G)^2, (V_clipped - G)^2) / 2, where V_clipped is within `value_clip` of the old value.

    values: [B, R], the critic now. old_values: [B, R], the critic when the samples were made. returns: [B, R], the
    targets of `gae`. value_clip: in units of reward. mask: [B, R] bool. Returns [B, R], zeros where masked.

    Source: the PPO2 code of OpenAI baselines, written down in arXiv:2006.05990 appendix B.1 and, for language models,
    arXiv:2403.17031 section 3.
    """
    values, returns = zero_masked(values, mask), zero_masked(returns, mask)
    old_values = zero_masked(old_values, mask)
    clipped = torch.clamp(values, old_values - value_clip, old_values + value_clip)
    return torch.maximum((values - returns).square(), (clipped - returns).square()) / 2
