"""A step's samples as tensors, and what is logged of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from posttrain.model.batch import Row
from posttrain.roles.learner import Metrics
from posttrain.rollout.buffer import Sample


@dataclass(kw_only=True)
class Experience:
    """N rows, R the longest response; log-probabilities are float32, nats.

    sampled [N, R]: the generator's log-probabilities. scores [N]: the reward, less penalties. groups [N]: the same
    number for samples of one prompt. advantages [N, R]. old [N, R]: log-probabilities before the first update; None
    where there is one update only, whose own log-probabilities they then are. reference [N, R]: None without a
    reference.
    """

    rows: list[Row]
    mask: Tensor
    sampled: Tensor
    scores: Tensor
    groups: Tensor
    advantages: Tensor
    old: Tensor | None = None
    reference: Tensor | None = None


def rollout_metrics(samples: Sequence[Sample]) -> Metrics:
    """What the policy wrote.

    Mean reward of the samples that have one, length in tokens, share cut by the limit, number of samples without a
    reward, and an estimate of the policy's entropy, nats per token: the mean of -log p of what was sampled.
    """
    rewards = [s.reward for s in samples if s.reward is not None and math.isfinite(s.reward)]
    tokens = sum(len(s.completion_ids) for s in samples)
    return {
        "rollout/reward": sum(rewards) / len(rewards),
        "rollout/length": tokens / len(samples),
        "rollout/truncated": sum(s.finish == "length" for s in samples) / len(samples),
        "rollout/excluded": float(len(samples) - len(rewards)),
        "rollout/entropy": -sum(sum(s.log_probs) for s in samples) / tokens,
    }
