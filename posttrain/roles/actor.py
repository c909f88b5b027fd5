"""The policy that trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor
from transformers import PreTrainedModel

from posttrain.config.schema import Training
from posttrain.model.batch import Row, token_log_probs
from posttrain.model.layers import train_last
from posttrain.roles.batches import Forward, Unit, per_token, split
from posttrain.roles.learner import Learner, Metrics, Stats

TokenLoss = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Stats]]
"""(index [U] of the micro-batch's units, values [b, R], mask [b, R] bool) -> (its part of the loss, of the metrics)."""


class Actor:
    """Owns the policy and its optimiser."""

    def __init__(self, model: PreTrainedModel, settings: Training, forward: Forward) -> None:
        self.model = model
        self.forward = forward
        self.frozen_layers = train_last(model, settings.train_layers)
        self.learner = Learner(model, settings, settings.learning_rate)

    def log_probs(self, rows: Sequence[Row]) -> Tensor:
        """log p of every response token [N, R], nats, without gradient; zeros where a row has no token."""
        return per_token(rows, self.forward, lambda batch: token_log_probs(self.model, batch, self.forward.temperature))

    def update(self, units: Sequence[Unit], loss: TokenLoss, step: int) -> Metrics:
        """One optimiser step on a minibatch of units; `loss` gets the log-probabilities of each micro-batch."""

        def parts() -> Iterator[tuple[Tensor, Stats]]:
            for micro in split(units, self.forward):
                log_probs = token_log_probs(self.model, micro.batch, self.forward.temperature)
                yield loss(micro.index, log_probs, micro.batch.response_mask)

        return self.learner.update(parts(), step)

    def stream_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter by name, one at a time, tied ones once: what a generation engine loads."""
        for name, parameter in self.model.named_parameters():
            yield name, parameter.detach()
