"""Training a reward model on pairs of completions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from posttrain.algorithms.preference.bradley_terry import bradley_terry_loss
from posttrain.config.schema import Training
from posttrain.model.heads import RewardModule
from posttrain.roles.batches import Forward, Unit, per_row, split
from posttrain.roles.learner import Learner, Metrics, Stats
from posttrain.trainer.metrics import row_mean, tokens_of, train_metrics
from posttrain.trainer.order import Order, data_digest
from posttrain.trainer.trainer import Job


class RewardPairs(Job):
    """The Bradley-Terry reward model: each pair's two completions go through one forward pass together."""

    def __init__(
        self, module: RewardModule, pairs: Sequence[Unit], settings: Training, forward: Forward, seed: int
    ) -> None:
        self.module, self.pairs, self.forward = module, pairs, forward
        self.learner = Learner(module, settings, settings.learning_rate)
        self.learners = {"reward_model": self.learner}
        self.order = Order(seed, len(pairs), settings.minibatch)
        self.data = data_digest(row for pair in pairs for row in pair)

    def step(self, step: int) -> tuple[Metrics, int]:
        """One optimiser step on pairs (chosen, rejected)."""
        units = [self.pairs[i] for i in self.order.rows(step)]
        return train_metrics(self.learner.update(self._losses(units), step)), tokens_of(units)

    def evaluate(self, pairs: Sequence[Unit]) -> Metrics:
        """Loss, share of pairs in the right order and mean margin over `pairs`."""
        return {f"eval/{name}": sum(values) / len(pairs) for name, values in self.measure(pairs).items()}

    @torch.no_grad()
    def measure(self, pairs: Sequence[Unit]) -> dict[str, list[float]]:
        """`loss`, `accuracy` (1 where the order is right) and `margin` of each pair, in the pairs' order.

        A text that stands in several pairs goes through the model once.
        """
        keys = [[(tuple(prompt), tuple(completion)) for prompt, completion in pair] for pair in pairs]
        places = {key: place for place, key in enumerate(dict.fromkeys(key for pair in keys for key in pair))}
        scores = per_row(list(places), self.forward, self.module)
        chosen, rejected = (scores[[places[pair[side]] for pair in keys]] for side in (0, 1))
        losses, stats = bradley_terry_loss(chosen, rejected)
        return {name: values.tolist() for name, values in {"loss": losses, **stats}.items()}

    def _losses(self, pairs: Sequence[Unit]) -> Iterator[tuple[Tensor, Stats]]:
        for micro in split(pairs, self.forward):
            chosen, rejected = self.module(micro.batch).view(-1, 2).unbind(1)
            losses, stats = bradley_terry_loss(chosen, rejected)
            yield row_mean(losses, len(pairs)), {name: row_mean(value, len(pairs)) for name, value in stats.items()}
