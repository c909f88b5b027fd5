"""Online DPO: pairs of the policy's own samples, ranked while it trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from posttrain.algorithms.aggregate import row_sum
from posttrain.config.runs import OnlineDPO
from posttrain.roles.learner import Metrics
from posttrain.rollout.buffer import Sample
from posttrain.trainer.experience import Experience
from posttrain.trainer.metrics import mean_metrics, train_metrics
from posttrain.trainer.online import OnlineJob
from posttrain.trainer.pair_loss import pair_loss


@dataclass(kw_only=True)
class PairedExperience(Experience):
    """Rows 2 i and 2 i + 1 are the chosen and the rejected completion of one prompt."""

    sums: Tensor | None  # [pairs, 2], nats: the reference's log-probabilities of the whole completions


class OnlinePairs(OnlineJob):
    """Of each prompt's samples, the best and the worst are a pair (arXiv:2402.04792, with a reward model as judge).

    A prompt whose samples have one reward, or are all the same, gives none. `minibatch` counts samples, as everywhere.

    parts: `loss` (chosen [b], rejected [b]) -> (losses [b], statistics [b]).
    """

    settings: OnlineDPO

    @property
    def wants_reference(self) -> bool:
        """All but the reference-free losses."""
        return not self.settings.reference_free

    def estimate(self, samples: Sequence[Sample]) -> PairedExperience | None:
        """The pairs as rows, and what the reference says of them."""
        scores = self.scores(samples, torch.device("cpu")).tolist()
        pairs = [
            sample
            for group in dict.fromkeys(sample.group for sample in samples)
            for sample in best_and_worst([(s, r) for s, r in zip(samples, scores, strict=True) if s.group == group])
        ]
        if not pairs:
            return None
        experience = self.tensors(pairs)
        reference = experience.reference
        sums = None if reference is None else row_sum(reference, experience.mask).view(-1, 2)
        return PairedExperience(**vars(experience), sums=sums)

    def update(self, experience: Experience, step: int) -> Metrics:
        """The policy's optimiser steps, on `minibatch` samples each."""
        assert isinstance(experience, PairedExperience)
        rows = experience.rows
        pairs = [(rows[i], rows[i + 1]) for i in range(0, len(rows), 2)]
        found = []
        for numbers in self.minibatches(range(len(pairs)), step, max(1, self.settings.minibatch // 2)):
            units = [pairs[i] for i in numbers]
            sums = None if experience.sums is None or self.settings.reference_free else experience.sums[numbers]
            loss = pair_loss(self.parts["loss"], self.settings, units, sums)
            found.append(self.actor.update(units, loss, step))
        return {**train_metrics(mean_metrics(found)), "rollout/pairs": float(len(pairs))}


def best_and_worst(group: Sequence[tuple[Sample, float]]) -> list[Sample]:
    """The samples of the highest and the lowest score, none where these are equal or the same text."""
    best = max(group, key=lambda each: each[1])
    worst = min(group, key=lambda each: each[1])
    same = best[1] == worst[1] or best[0].completion_ids == worst[0].completion_ids
    return [] if same else [best[0], worst[0]]
