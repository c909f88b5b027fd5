"""ReMax: each sample is compared with what the policy itself finds most likely."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from posttrain.rollout.buffer import Sample
from posttrain.trainer.experience import Experience
from posttrain.trainer.policy_gradient import PolicyGradient
from posttrain.trainer.rows import rows_of


class GreedyBaseline(PolicyGradient):
    """One greedy completion of each prompt, scored like the samples.

    parts: `remax` (rewards [N, R], mask [N, R], baselines [N]) -> [N, R].
    """

    def estimate(self, samples: Sequence[Sample]) -> Experience:
        """One advantage for each token."""
        experience = self.prepared(self.tensors(samples))
        rewards = self.rewards(experience)
        experience.advantages = self.parts["remax"](rewards, experience.mask, self.baselines(samples))
        return experience

    def baselines(self, samples: Sequence[Sample]) -> Tensor:
        """[N]: the score of the greedy completion of each sample's prompt."""
        prompts = {sample.group: (sample.prompt_id, sample.prompt_ids) for sample in samples}
        sampling = dataclasses.replace(self.sampling, greedy=True)
        greedy = self.rollout.generate(list(prompts.values()), 1, sampling, 0)
        rewards = self.reward.score(rows_of(greedy)).tolist()
        for sample, reward in zip(greedy, rewards, strict=True):
            sample.reward = reward
        device = torch.device(self.forward.device)
        found = dict(zip(prompts, self.scores(greedy, device).tolist(), strict=True))
        return torch.tensor([found[sample.group] for sample in samples], device=device)
