"""Training a reward model on pairs of completions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.algorithms.preference.bradley_terry import bradley_terry
from posttrain.algorithms.preference.stats import pair_stats
from posttrain.config.schema import RewardModel
from posttrain.model.heads import RewardModule
from posttrain.roles.batches import Forward, Unit, per_row, split
from posttrain.roles.learner import Learner, Metrics, Stats
from posttrain.trainer.metrics import row_mean, tokens_of, train_metrics
from posttrain.trainer.order import Order, data_digest
from posttrain.trainer.trainer import Job


class RewardPairs(Job):
    """The Bradley-Terry reward model: each pair's two completions go through one forward pass together."""

    def __init__(
        self,
        module: RewardModule,
        pairs: Sequence[Unit],
        gaps: Sequence[float],
        settings: RewardModel,
        forward: Forward,
        seed: int,
    ) -> None:
        """pairs: (chosen, rejected). gaps: by how much the rewards of each are to differ; zeros where no more is known
        than which is the better one."""
        self.module, self.pairs, self.settings, self.forward = module, pairs, settings, forward.of(module)
        self.gaps = torch.tensor(gaps, dtype=torch.float32, device=forward.device)
        self.learner = Learner(module, settings, settings.learning_rate)
        self.learners = {"reward_model": self.learner}
        self.order = Order(seed, len(pairs), settings.minibatch)
        self.data = data_digest([*(row for pair in pairs for row in pair), [self.gaps.view(torch.int32).tolist()]])

    def step(self, step: int) -> tuple[Metrics, int]:
        """One optimiser step on pairs (chosen, rejected)."""
        numbers = self.order.rows(step)
        metrics = self.learner.update(self._losses(numbers), step)
        return train_metrics(metrics), tokens_of(self.pairs[i] for i in numbers)

    def evaluate(self, pairs: Sequence[Unit]) -> Metrics:
        """Means over `pairs` of what `measure` gives."""
        return {f"eval/{name}": sum(values) / len(pairs) for name, values in self.measure(pairs).items()}

    @torch.no_grad()
    def measure(self, pairs: Sequence[Unit]) -> dict[str, list[float]]:
        """`loss` and the statistics of `pair_stats` of each pair, in the pairs' order.

        The loss is -log p of the pair's order, p = sigmoid(margin), with whatever terms the model was trained, so that
        models can be compared by it. A text that stands in several pairs goes through the model once.
        """
        keys = [[(tuple(prompt), tuple(completion)) for prompt, completion in pair] for pair in pairs]
        places = {key: place for place, key in enumerate(dict.fromkeys(key for pair in keys for key in pair))}
        scores = per_row(list(places), self.forward, self.module)
        stats = pair_stats(*(scores[[places[pair[side]] for pair in keys]] for side in (0, 1)))
        return {name: values.tolist() for name, values in {"loss": -logsigmoid(stats["margin"]), **stats}.items()}

    def _losses(self, numbers: Sequence[int]) -> Iterator[tuple[Tensor, Stats]]:
        gaps, count = self.gaps[numbers], len(numbers)
        settings = {"centre_coef": self.settings.centre_coef, "label_smoothing": self.settings.label_smoothing}
        for micro in split([self.pairs[i] for i in numbers], self.forward):
            chosen, rejected = self.module(micro.batch).view(-1, 2).unbind(1)
            losses, stats = bradley_terry(chosen, rejected, gaps[micro.index], **settings)
            yield row_mean(losses, count), {name: row_mean(value, count) for name, value in stats.items()}
