"""What the losses on pairs and labels report beside the loss."""

from __future__ import annotations

from torch import Tensor


def pair_stats(chosen: Tensor, rejected: Tensor) -> dict[str, Tensor]:
    """Of pairs: chosen, rejected [B], the rewards of the two completions -> detached statistics [B].

    `chosen_reward` and `rejected_reward` as given; `margin`, their difference; `accuracy`, 1 where it is above zero.
    """
    chosen, rejected = chosen.detach(), rejected.detach()
    margin = chosen - rejected
    accuracy = (margin > 0).to(margin.dtype)
    return {"chosen_reward": chosen, "rejected_reward": rejected, "margin": margin, "accuracy": accuracy}


def label_stats(reward: Tensor, margin: Tensor) -> dict[str, Tensor]:
    """Of labelled completions: reward, margin [B] -> detached statistics [B].

    `reward` and `margin` as given; `accuracy`, 1 where the margin is above zero.
    """
    margin = margin.detach()
    return {"reward": reward.detach(), "margin": margin, "accuracy": (margin > 0).to(margin.dtype)}
