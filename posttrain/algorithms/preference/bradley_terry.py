"""The reward model's loss."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid


def bradley_terry_loss(chosen: Tensor, rejected: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """-log sigmoid(chosen - rejected) per pair: chosen, rejected [B], scalar rewards of the two completions.

    Returns losses [B] and detached statistics [B]: `margin`, the difference; `accuracy`, 1 where it is above zero.

    Source: arXiv:2203.02155 eq. 1 (one pair per prompt).
    """
    margin = chosen - rejected
    return -logsigmoid(margin), {"margin": margin.detach(), "accuracy": (margin > 0).to(margin.dtype)}
