"""RAFT: SFT on the best of the policy's own samples."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from posttrain.algorithms.aggregate import aggregate
from posttrain.config.runs import RAFT
from posttrain.roles.actor import TokenLoss
from posttrain.roles.learner import Metrics, Stats
from posttrain.rollout.buffer import Sample
from posttrain.trainer.experience import Experience
from posttrain.trainer.metrics import mean_metrics, train_metrics
from posttrain.trainer.online import OnlineJob


class BestOfN(OnlineJob):
    """The best sample of each group is learnt like given text, and the others are forgotten.

    parts: `best_of_n` (scores [N], groups [N]) -> bool [N]; `policy_loss` (log_probs, old, advantages, mask).
    """

    settings: RAFT
    wants_reference = False

    def estimate(self, samples: Sequence[Sample]) -> Experience:
        """The samples that are kept, with the advantage 1."""
        device = torch.device(self.forward.device)
        groups = torch.tensor([sample.group for sample in samples], device=device)
        best = self.parts["best_of_n"](self.scores(samples, device), groups).tolist()
        experience = self.tensors([sample for sample, kept in zip(samples, best, strict=True) if kept])
        experience.advantages = experience.mask.float()
        return experience

    def update(self, experience: Experience, step: int) -> Metrics:
        """The policy's optimiser steps."""
        numbers = self.minibatches(experience.groups.tolist(), step)
        found = [
            self.actor.update([(experience.rows[i],) for i in each], self.loss(experience, each), step)
            for each in numbers
        ]
        metrics = train_metrics(mean_metrics(found))
        del metrics["train/logprob_gap"]
        return {
            **metrics,
            "train/best_reward": float(experience.scores.mean()),
            "rollout/logprob_gap": found[0]["logprob_gap"],
        }

    def loss(self, experience: Experience, numbers: Sequence[int]) -> TokenLoss:
        """The mean of -log p over all tokens of the minibatch."""
        chosen = torch.tensor(numbers, device=experience.mask.device)
        count = float(experience.mask[chosen].sum())

        def loss(index: Tensor, log_probs: Tensor, mask: Tensor) -> tuple[Tensor, Stats]:
            advantages, sampled = (
                v[chosen[index], : mask.shape[1]] for v in (experience.advantages, experience.sampled)
            )
            losses, stats = self.parts["policy_loss"](log_probs, sampled, advantages, mask)
            stats["logprob_gap"] = (log_probs.detach() - sampled).abs()
            means = {name: aggregate(values, mask, "token-mean", count=count) for name, values in stats.items()}
            return aggregate(losses, mask, "token-mean", count=count), means

        return loss
