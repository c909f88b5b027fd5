"""Methods that compare the samples of one prompt with each other, without a critic: GRPO."""

from __future__ import annotations

from collections.abc import Sequence

from posttrain.algorithms.advantages.group import flat_share
from posttrain.config.schema import GRPO
from posttrain.roles.learner import Metrics
from posttrain.rollout.buffer import Sample
from posttrain.trainer.online import Experience, OnlineJob


class Groups(OnlineJob):
    """The KL penalty is a term of the loss.

    parts: `advantages` (scores [N], groups [N], scale_by_std) -> [N]; `policy_loss`; `kl` (log_probs, reference, mask)
    -> [B, R].
    """

    settings: GRPO

    def estimate(self, samples: Sequence[Sample]) -> Experience:
        """One advantage for each sample, the same at all its tokens."""
        experience = self.tensors(samples)
        advantages = self.parts["advantages"](experience.scores, experience.groups, self.settings.scale_by_std)
        experience.advantages = advantages[:, None].expand_as(experience.mask)
        if not self.one_update(experience.rows):
            experience.old = self.actor.log_probs(experience.rows)
        return experience

    def update(self, experience: Experience, step: int) -> Metrics:
        """The policy's optimiser steps; the share of groups that teach nothing, as all their scores are equal."""
        metrics = self.update_actor(experience, step, self.settings.aggregation, self.settings.kl_coef)
        return {**metrics, "rollout/equal_groups": flat_share(experience.scores, experience.groups)}
