"""Odds-ratio preference optimisation: the term that is added to the chosen completion's negative log-likelihood."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.algorithms.preference.stats import pair_stats


def log1mexp(x: Tensor) -> Tensor:
    """log(1 - e^x) for x < 0, elementwise, in two ranges so that neither end loses its digits.

    x is held at the smallest step below 0, where the true value is -inf, and its gradient there is 0.
    Source: M. Mächler, "Accurately computing log(1 - exp(-|a|))" (2012), eq. 7.
    """
    x = x.clamp(max=-torch.finfo(x.dtype).eps)
    return torch.where(x > -math.log(2), torch.log(-torch.expm1(x)), torch.log1p(-torch.exp(x)))


def orpo(chosen: Tensor, rejected: Tensor, *, beta: float) -> tuple[Tensor, dict[str, Tensor]]:
    """-beta log sigmoid(log odds(chosen) - log odds(rejected)) per pair, with odds(p) = p / (1 - p).

    chosen, rejected: [B], the policy's log-probabilities, means over the completion's tokens, nats, at most 0. beta:
    the paper's lambda, the weight of this term beside the chosen completion's loss. Returns losses [B] and the
    statistics of `pair_stats`.

    Source: arXiv:2403.07691 eq. 6-7.
    """
    log_odds = chosen - rejected - (log1mexp(chosen) - log1mexp(rejected))
    return -beta * logsigmoid(log_odds), pair_stats(beta * chosen, beta * rejected)
