"""Methods that learn from pairs (chosen, rejected): DPO."""

from __future__ import annotations

from torch import Tensor

from posttrain.algorithms.aggregate import row_sum
from posttrain.roles.learner import Metrics, Stats
from posttrain.trainer.context import Context
from posttrain.trainer.metrics import row_mean, tokens_of, train_metrics
from posttrain.trainer.preference import Parts, PreferenceJob


class Pairs(PreferenceJob):
    """A minibatch is `minibatch` pairs; the two completions of a pair go through one forward pass together.

    parts: `loss` (policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta) -> (losses [B], statistics [B]).
    """

    def __init__(self, context: Context, parts: Parts) -> None:
        super().__init__(context, parts)
        rows = self.rows_of("pairs", ("chosen_ids", "rejected_ids"))
        self.pairs = [
            ((row["prompt_ids"], row["chosen_ids"]), (row["prompt_ids"], row["rejected_ids"])) for row in rows
        ]
        context.log.info("%d pairs to train on", len(self.pairs))
        self.reference = self.begin(len(self.pairs), [row for pair in self.pairs for row in pair]).view(-1, 2)

    def train_step(self, step: int) -> tuple[Metrics, int]:
        """One optimiser step."""
        numbers = self.order.rows(step)
        units = [self.pairs[i] for i in numbers]
        reference = self.reference[numbers]

        def loss(index: Tensor, log_probs: Tensor, mask: Tensor) -> tuple[Tensor, Stats]:
            policy = row_sum(log_probs, mask).view(-1, 2)
            fixed = reference[index]
            losses, stats = self.parts["loss"](policy[:, 0], policy[:, 1], fixed[:, 0], fixed[:, 1], self.settings.beta)
            means = {name: row_mean(values, len(units)) for name, values in stats.items()}
            return row_mean(losses, len(units)), means

        return train_metrics(self.actor.update(units, loss, step)), tokens_of(units)
