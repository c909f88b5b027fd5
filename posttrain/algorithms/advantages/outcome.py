"""What the advantage estimators share: a row's whole reward, its return to go, and who is compared with whom."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from posttrain.algorithms.aggregate import row_sum, zero_masked


def outcomes(rewards: Tensor, mask: Tensor) -> Tensor:
    """Each row's sum of rewards, [N, R] -> [N]; NaN for a row without tokens, which is no sample at all."""
    return torch.where(mask.any(dim=-1), row_sum(rewards, mask), torch.nan)


def spread(advantages: Tensor, mask: Tensor) -> Tensor:
    """One value for each row at all its tokens: [N] -> [N, R], zeros where masked."""
    return zero_masked(advantages[:, None].expand(mask.shape), mask)


def returns_to_go(rewards: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """G_t = r_t + gamma G_{t+1}, [N, R], zeros where masked. Masked tokens within a row are no time steps."""
    rewards = zero_masked(rewards, mask)
    returns = torch.zeros_like(rewards)
    following = torch.zeros_like(rewards[:, 0])
    for t in reversed(range(rewards.shape[1])):
        following = torch.where(mask[:, t], rewards[:, t] + gamma * following, following)
        returns[:, t] = zero_masked(following, mask[:, t])
    return returns


@dataclass(frozen=True)
class Membership:
    """Who counts in which of G groups; a sample without a finite score counts in none.

    index: [N] int64, each sample's group 0..G-1. member: [G, N] bool. flat: [G] bool, the groups that teach nothing,
    as all their scores are equal or fewer than two samples are left.
    """

    index: Tensor
    member: Tensor
    flat: Tensor

    @classmethod
    def of(cls, scores: Tensor, groups: Tensor) -> Membership:
        """scores: [N], NaN or infinite for an excluded sample. groups: [N] int64, any numbers in any order."""
        names, index = torch.unique(groups, return_inverse=True)
        member = (index == torch.arange(len(names), device=index.device)[:, None]) & scores.isfinite()
        low = torch.where(member, scores, torch.inf).amin(dim=1)
        high = torch.where(member, scores, -torch.inf).amax(dim=1)
        # compared exactly: the rounding of a mean must not be blown up by a division by almost zero
        return cls(index, member, high <= low)

    def counts(self) -> Tensor:
        """Samples that count in each sample's group: [N] int64."""
        return self.member.sum(dim=1)[self.index]

    def sums(self, values: Tensor) -> Tensor:
        """The sum of `values` [N] over each sample's group: [N]."""
        return torch.where(self.member, values, 0.0).sum(dim=1)[self.index]

    def taught(self, values: Tensor) -> Tensor:
        """`values` [N] with exact zeros for excluded samples and for those of flat groups."""
        return zero_masked(values, self.member.any(dim=0) & ~self.flat[self.index])
