"""Direct preference optimisation."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid


def dpo_loss(
    policy_chosen: Tensor, policy_rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor, beta: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """-log sigmoid(beta (log-ratio of the chosen - log-ratio of the rejected)) per pair.

    The four tensors are [B]: log-probabilities of whole completions (nats, sums over tokens). beta: reward per nat.
    Returns losses [B] and detached statistics [B]: `chosen_reward` and `rejected_reward`, beta times the log-ratio;
    `margin`, their difference; `accuracy`, 1 where it is above zero.

    Source: arXiv:2305.18290 eq. 7.
    """
    chosen = beta * (policy_chosen - ref_chosen)
    rejected = beta * (policy_rejected - ref_rejected)
    margin = chosen - rejected
    stats = {
        "chosen_reward": chosen.detach(),
        "rejected_reward": rejected.detach(),
        "margin": margin.detach(),
        "accuracy": (margin > 0).to(margin.dtype),
    }
    return -logsigmoid(margin), stats
