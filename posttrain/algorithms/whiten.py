"""Whitening with the masked mean and variance of a whole batch."""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.algorithms.aggregate import zero_masked

EPSILON = 1e-8


def masked_moments(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and unbiased variance of the unmasked values: values and mask (bool) of one shape -> two scalars.

    Without unmasked values the mean is 0; with fewer than two the variance is 0.
    """
    count = mask.sum()
    mean = zero_masked(values, mask).sum() / count.clamp(min=1)
    variance = zero_masked(values - mean, mask).square().sum() / (count - 1).clamp(min=1)
    return mean, variance


@torch.no_grad()
def whiten(values: Tensor, mask: Tensor, *, mean: Tensor | None = None, var: Tensor | None = None) -> Tensor:
    """(values - mean) / sqrt(var + 1e-8), zeros where masked, without gradient: values [B, R], mask [B, R] bool.

    mean, var: scalars of the whole batch (`masked_moments`), where `values` is only a part of it; the part may be
    empty. Without them they are taken from `values`, which must then be the whole batch. A batch of one token gives 0.
    Source: arXiv:2006.05990 (advantage normalisation, choice C67); the unbiased variance is that of TRL and verl.

    Raises ValueError if only one of mean and var is given.
    """
    if (mean is None) != (var is None):
        raise ValueError("give both mean and var, or neither")
    if mean is None or var is None:
        mean, var = masked_moments(values, mask)
    return zero_masked(values - mean, mask) * torch.rsqrt(var + EPSILON)
