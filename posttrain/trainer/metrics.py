"""Metrics of a step: their names, and how parts become the whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from posttrain.algorithms.aggregate import aggregate
from posttrain.roles.batches import Unit
from posttrain.roles.learner import Metrics


def train_metrics(metrics: Metrics) -> Metrics:
    """The same values under the names that trackers know: `loss` is `train/loss`."""
    return {f"train/{name}": value for name, value in metrics.items()}


def tokens_of(units: Iterable[Unit]) -> int:
    """Tokens of all rows of all units, prompts included, padding not."""
    return sum(len(prompt) + len(completion) for unit in units for prompt, completion in unit)


def row_mean(values: Tensor, count: int) -> Tensor:
    """A micro-batch's share of the mean over `count` rows or pairs of the minibatch: values [b] -> scalar."""
    return aggregate(values, torch.ones_like(values, dtype=torch.bool), "sequence-mean", count=count)


def mean_metrics(found: Sequence[Metrics]) -> Metrics:
    """Each metric's mean over the optimiser steps of one training step."""
    return {name: sum(metrics[name] for metrics in found) / len(found) for name in found[0]}
