"""Generalised advantage estimation."""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.algorithms.aggregate import zero_masked


@torch.no_grad()
def gae(rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Advantages and returns (targets of the critic) per token, not whitened.

    rewards: [B, R], what token t earned. values: [B, R], the critic's value before token t was emitted. mask: [B, R]
    bool. Returns two [B, R] tensors without gradient, zeros where masked. The value after a row's last token is 0: an
    episode ends there, cut by the length limit or not. Masked tokens within a row (a tool's answer) are no time
    steps: the recursion passes over them.

    Source: arXiv:1506.02438 eq. 11, 12 and 16: delta_t = r_t + gamma V_{t+1} - V_t, A_t = delta_t + gamma lam A_{t+1}.
    """
    rewards, values = zero_masked(rewards, mask), zero_masked(values, mask)
    next_value = next_advantage = torch.zeros_like(values[:, 0])
    advantages = torch.zeros_like(values)
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantage = delta + gamma * lam * next_advantage
        advantages[:, t] = zero_masked(advantage, mask[:, t])
        next_value = torch.where(mask[:, t], values[:, t], next_value)
        next_advantage = torch.where(mask[:, t], advantage, next_advantage)
    return advantages, advantages + values
