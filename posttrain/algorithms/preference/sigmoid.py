"""Direct preference optimisation, also its conservative, length-normalised and reference-free forms (CPO)."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.algorithms.preference.stats import pair_stats


def sigmoid(
    chosen: Tensor, rejected: Tensor, *, beta: float, label_smoothing: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """-(1 - e) log sigmoid(m) - e log sigmoid(-m) per pair, with m = beta (chosen - rejected), e = label_smoothing.

    chosen, rejected: [B], log-ratios of the policy to the reference, nats. beta: reward per nat. label_smoothing: the
    share of pairs whose preference is thought to be the wrong way round; 0 is DPO. Returns losses [B] and the
    statistics of `pair_stats`.

    Source: arXiv:2305.18290 eq. 7; label smoothing (conservative DPO): E. Mitchell, "A note on DPO with noisy
    preferences & relationship to IPO" (2023). On log-probabilities in place of log-ratios: CPO, arXiv:2401.08417.
    """
    stats = pair_stats(beta * chosen, beta * rejected)
    margin = beta * (chosen - rejected)
    return -(1 - label_smoothing) * logsigmoid(margin) - label_smoothing * logsigmoid(-margin), stats
