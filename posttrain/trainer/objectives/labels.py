"""Methods that learn from completions labelled good or bad: KTO."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from posttrain.algorithms.aggregate import row_sum
from posttrain.config.schema import KTO
from posttrain.model.batch import Row
from posttrain.roles.learner import Metrics, Stats
from posttrain.trainer.context import Context
from posttrain.trainer.metrics import row_mean, tokens_of, train_metrics
from posttrain.trainer.preference import Parts, PreferenceJob


class Labels(PreferenceJob):
    """A minibatch is `minibatch` labelled completions; their KL baseline comes from mismatched ones, without gradient.

    parts: `kl_baseline` (policy_logps, ref_logps) -> z0, of the whole minibatch; `loss` (policy_logps, ref_logps,
    labels, z0, beta, desirable_weight, undesirable_weight) -> (losses [B], statistics [B]).
    """

    settings: KTO

    def __init__(self, context: Context, parts: Parts) -> None:
        super().__init__(context, parts)
        found = self.rows_of("labels", ("completion_ids",))
        self.rows: list[Row] = [(row["prompt_ids"], row["completion_ids"]) for row in found]
        self.mismatched = mismatch(self.rows)
        self.labels = torch.tensor([bool(row["label"]) for row in found], device=context.device)
        desirable = int(self.labels.sum())
        context.log.info("%d desirable and %d undesirable completions", desirable, len(self.rows) - desirable)
        reference = self.begin(len(self.rows), [*self.rows, *self.mismatched])
        self.reference, self.mismatched_reference = reference.split(len(self.rows))

    def train_step(self, step: int) -> tuple[Metrics, int]:
        """One pass over the mismatched completions without gradient, then one optimiser step."""
        numbers = self.order.rows(step)
        units = [(self.rows[i],) for i in numbers]
        others = [self.mismatched[i] for i in numbers]
        baseline = self.parts["kl_baseline"](self.actor.log_probs(others).sum(-1), self.mismatched_reference[numbers])
        labels, reference = self.labels[numbers], self.reference[numbers]

        def loss(index: Tensor, log_probs: Tensor, mask: Tensor) -> tuple[Tensor, Stats]:
            losses, stats = self.parts["loss"](
                row_sum(log_probs, mask),
                reference[index],
                labels[index],
                baseline,
                self.settings.beta,
                self.settings.desirable_weight,
                self.settings.undesirable_weight,
            )
            means = {name: row_mean(values, len(units)) for name, values in stats.items()}
            return row_mean(losses, len(units)), means

        metrics = self.actor.update(units, loss, step)
        desirable = float(labels.float().mean())
        extra = {"kl_baseline": float(baseline), "desirable": desirable}
        return train_metrics({**metrics, **extra}), tokens_of(units) + tokens_of([others])


def mismatch(rows: Sequence[Row]) -> list[Row]:
    """Each prompt with the completion of the next row (cyclic) that has another prompt, or of the next row at all.

    Source: arXiv:2402.01306 section 4.1, where the pairs (x, y') come from shifting the completions.
    """
    prompts = [tuple(prompt) for prompt, _ in rows]
    found: list[Row] = []
    other = 0
    for i in range(len(rows)):
        other = max(other, i + 1)
        while other < i + len(rows) and prompts[other % len(rows)] == prompts[i]:
            other += 1
        nearest = other if other < i + len(rows) else i + 1
        found.append((rows[i][0], rows[nearest % len(rows)][1]))
    return found
