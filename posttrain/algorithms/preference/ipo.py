"""Identity preference optimisation."""

from __future__ import annotations

from torch import Tensor

from posttrain.algorithms.preference.stats import pair_stats


def ipo(chosen: Tensor, rejected: Tensor, *, beta: float) -> tuple[Tensor, dict[str, Tensor]]:
    """(chosen - rejected - 1 / (2 beta))^2 per pair, in nats squared.

    chosen, rejected: [B], log-ratios of the policy to the reference, nats. beta: the paper's tau, reward per nat; the
    difference is pulled to 1 / (2 beta), from both sides. Returns losses [B] and the statistics of `pair_stats`.

    Source: arXiv:2310.12036 eq. 17, where the log-ratios are sums over the completion.
    """
    return (chosen - rejected - 1 / (2 * beta)).square(), pair_stats(beta * chosen, beta * rejected)
