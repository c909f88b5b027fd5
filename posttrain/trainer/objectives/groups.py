"""Methods without a critic whose advantages come from the rewards alone: GRPO and its kin."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from posttrain.algorithms.advantages.group import flat_share
from posttrain.config.runs import Advantaged
from posttrain.roles.learner import Metrics
from posttrain.rollout.buffer import Sample
from posttrain.trainer.experience import Experience, rollout_metrics
from posttrain.trainer.policy_gradient import PolicyGradient
from posttrain.trainer.rows import rows_of


class Groups(PolicyGradient):
    """Groups whose rewards are all equal teach most of these methods nothing; others can be sampled in their place.

    parts: `advantages` (rewards [N, R], mask [N, R], groups [N]) -> [N, R].
    """

    settings: Advantaged

    def collect(self, step: int) -> tuple[list[Sample], Metrics]:
        """The step's samples; with `most_batches`, those of groups that teach, from as many batches as it takes.

        Source: dynamic sampling, DAPO, arXiv:2503.14476 section 3.2. Where no group teaches, the first batch is taken.
        """
        made: list[Sample] = []
        first: list[Sample] = []
        teaching: list[list[Sample]] = []
        wanted = self.settings.prompts_per_step
        for batch in range(self.settings.most_batches):
            samples = self.generate(step, batch)
            kept = self.score(samples)
            made, first = [*made, *samples], first or kept
            teaching += [group for group in groups_of(kept) if teaches(group)]
            if len(teaching) >= wanted:
                break
        metrics = rollout_metrics(made)
        metrics["rollout/equal_groups"] = equal_groups(made)
        if self.settings.most_batches == 1:
            return first, metrics
        metrics["rollout/batches"] = float(batch + 1)
        chosen = [sample for group in teaching[:wanted] for sample in group] or first
        if self.frozen is not None and batch > 0:
            self.frozen.keep(rows_of(chosen))
        return chosen, metrics

    def estimate(self, samples: Sequence[Sample]) -> Experience:
        """One advantage for each token."""
        experience = self.prepared(self.tensors(samples))
        rewards = self.rewards(experience)
        experience.advantages = self.parts["advantages"](rewards, experience.mask, experience.groups)
        return experience


def groups_of(samples: Sequence[Sample]) -> list[list[Sample]]:
    """The samples of each prompt, in their order."""
    found: dict[int, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.group, []).append(sample)
    return list(found.values())


def teaches(group: Sequence[Sample]) -> bool:
    """Whether the rewards of a group differ."""
    return len({sample.reward for sample in group}) > 1


def equal_groups(samples: Sequence[Sample]) -> float:
    """Share of groups whose rewards are all equal; a reward that is no number counts for none."""
    rewards = torch.tensor([float("nan") if sample.reward is None else sample.reward for sample in samples])
    return flat_share(rewards, torch.tensor([sample.group for sample in samples]))
