"""Methods that learn from completions labelled good or bad: KTO and BCO."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from posttrain.algorithms.aggregate import row_sum
from posttrain.errors import UserError
from posttrain.model.batch import Row
from posttrain.roles.learner import Metrics, Stats
from posttrain.trainer.context import Context
from posttrain.trainer.metrics import row_mean, tokens_of, train_metrics
from posttrain.trainer.parts import Parts
from posttrain.trainer.preference import PreferenceJob


class Labels(PreferenceJob):
    """A minibatch is `minibatch` labelled completions, and all of them are measured from one baseline.

    parts: `loss` (log_ratios [b], labels [b], baseline) -> (losses [b], statistics [b]).
    """

    def __init__(self, context: Context, parts: Parts) -> None:
        super().__init__(context, parts)
        found = self.rows_of("labels", ("completion_ids",))
        self.rows: list[Row] = [(row["prompt_ids"], row["completion_ids"]) for row in found]
        self.labels = torch.tensor([bool(row["label"]) for row in found], device=context.device)
        desirable = int(self.labels.sum())
        context.log.info("%d desirable and %d undesirable completions", desirable, len(self.rows) - desirable)
        self.begin(len(self.rows), [*self.rows, *self.further_rows()])
        sums = self.reference_sums()
        self.reference, self.further_reference = sums[: len(self.rows)], sums[len(self.rows) :]

    def further_rows(self) -> Sequence[Row]:
        """Rows that the baseline needs the reference's log-probabilities of."""
        return ()

    @abstractmethod
    def baseline(self, numbers: Sequence[int]) -> Tensor:
        """The baseline of a minibatch, a scalar without gradient."""

    def train_step(self, step: int) -> tuple[Metrics, int]:
        """One optimiser step."""
        numbers = self.order.rows(step)
        units = [(self.rows[i],) for i in numbers]
        labels, reference, baseline = self.labels[numbers], self.reference[numbers], self.baseline(numbers)

        def loss(index: Tensor, log_probs: Tensor, mask: Tensor) -> tuple[Tensor, Stats]:
            ratios = row_sum(log_probs, mask) - reference[index]
            losses, stats = self.parts["loss"](ratios, labels[index], baseline)
            means = {name: row_mean(values, len(units)) for name, values in stats.items()}
            return row_mean(losses, len(units)), means

        metrics = self.actor.update(units, loss, step)
        extra = {"baseline": float(baseline), "desirable": float(labels.float().mean())}
        return train_metrics({**metrics, **extra}), tokens_of(units)


class KTOLabels(Labels):
    """The baseline is an estimate of the KL to the reference, from mismatched rows, with a pass of their own.

    parts: also `kl_baseline` (policy_logps [n], ref_logps [n]) -> z0, of the whole minibatch.
    """

    def further_rows(self) -> Sequence[Row]:
        """Each prompt with another's completion."""
        self.mismatched = mismatch(self.rows)
        return self.mismatched

    def baseline(self, numbers: Sequence[int]) -> Tensor:
        """z0, from one pass over the minibatch's mismatched rows."""
        policy = self.actor.log_probs([self.mismatched[i] for i in numbers]).sum(-1)
        z0: Tensor = self.parts["kl_baseline"](policy, self.further_reference[numbers])
        return z0

    def train_step(self, step: int) -> tuple[Metrics, int]:
        """One optimiser step; the pass over the mismatched rows is work too."""
        metrics, tokens = super().train_step(step)
        return metrics, tokens + tokens_of([[self.mismatched[i] for i in self.order.rows(step)]])


class BCOLabels(Labels):
    """The baseline is the mean of all rewards of the minibatches before this one: it needs no pass of its own.

    parts: also `running_shift` (shift, seen, reward, rows) -> the shift after another minibatch.
    """

    shift: float = 0.0
    seen: int = 0

    def baseline(self, numbers: Sequence[int]) -> Tensor:
        """The reward shift so far."""
        return torch.tensor(self.shift, device=self.labels.device)

    def train_step(self, step: int) -> tuple[Metrics, int]:
        """One optimiser step; its rewards move the shift of the next."""
        metrics, tokens = super().train_step(step)
        if "train/reward" not in metrics:
            raise UserError(f"loss: {self.settings.loss} gives no statistic 'reward', which bco needs; add it there")
        rows = self.order.minibatch
        self.shift = self.parts["running_shift"](self.shift, self.seen, metrics["train/reward"], rows)
        self.seen += rows
        return metrics, tokens

    def counters(self) -> dict[str, Any]:
        """The shift and the rows behind it."""
        return {"shift": self.shift, "seen": self.seen}

    def restored(self, counters: Mapping[str, Any]) -> None:
        """Takes them back."""
        self.shift, self.seen = counters["shift"], counters["seen"]


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
