"""Methods that learn from stored pairs (chosen, rejected): DPO and its kin."""

from __future__ import annotations

from posttrain.config.runs import PairRun
from posttrain.roles.learner import Metrics
from posttrain.trainer.context import Context
from posttrain.trainer.metrics import tokens_of, train_metrics
from posttrain.trainer.pair_loss import pair_loss
from posttrain.trainer.parts import Parts
from posttrain.trainer.preference import PreferenceJob


class Pairs(PreferenceJob):
    """A minibatch is `minibatch` pairs; the two completions of a pair go through one forward pass together.

    parts: `loss` (chosen [b], rejected [b]) -> (losses [b], statistics [b]).
    """

    settings: PairRun

    def __init__(self, context: Context, parts: Parts) -> None:
        super().__init__(context, parts)
        rows = self.rows_of("pairs", ("chosen_ids", "rejected_ids"))
        self.pairs = [
            ((row["prompt_ids"], row["chosen_ids"]), (row["prompt_ids"], row["rejected_ids"])) for row in rows
        ]
        context.log.info("%d pairs to train on", len(self.pairs))
        self.begin(len(self.pairs), [row for pair in self.pairs for row in pair])
        self.reference = None if self.settings.reference_free else self.reference_sums().view(-1, 2)

    def train_step(self, step: int) -> tuple[Metrics, int]:
        """One optimiser step."""
        numbers = self.order.rows(step)
        units = [self.pairs[i] for i in numbers]
        reference = None if self.reference is None else self.reference[numbers]
        loss = pair_loss(self.parts["loss"], self.settings, units, reference)
        return train_metrics(self.actor.update(units, loss, step)), tokens_of(units)
