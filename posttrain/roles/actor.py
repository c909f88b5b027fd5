"""The policy that trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor
from transformers import PreTrainedModel

from posttrain.config.sections import Training
from posttrain.model.batch import Row, token_log_probs
from posttrain.model.lora import merged_parameters
from posttrain.roles.batches import Forward, Unit, per_token, split
from posttrain.roles.learner import Learner, Metrics, Stats, let_train
from posttrain.runtime.seeds import derive

TokenLoss = Callable[..., tuple[Tensor, Stats]]
"""(index [U] of the micro-batch's units, values [b, R], mask [b, R] bool, and the entropies [b, R] where they are asked
for) -> (its part of the loss, of the metrics)."""


class Actor:
    """Owns the policy and its optimiser."""

    def __init__(self, model: PreTrainedModel, settings: Training, forward: Forward, seed: int) -> None:
        self.model = model
        self.forward = forward
        self.frozen_layers = let_train(model, settings, derive(seed, "lora"))
        self.learner = Learner(model, settings, settings.learning_rate)

    def log_probs(self, rows: Sequence[Row]) -> Tensor:
        """log p of every response token [N, R], nats, without gradient; zeros where a row has no token."""
        return per_token(
            rows,
            self.forward.of(self.model),
            lambda batch: token_log_probs(self.model, batch, self.forward.temperature),
        )

    def update(self, units: Sequence[Unit], loss: TokenLoss, step: int, *, with_entropy: bool = False) -> Metrics:
        """One optimiser step on a minibatch of units; `loss` gets the log-probabilities of each micro-batch."""

        def parts() -> Iterator[tuple[Tensor, Stats]]:
            for micro in split(units, self.forward.of(self.model)):
                batch, temperature = micro.batch, self.forward.temperature
                if with_entropy:
                    log_probs, entropy = token_log_probs(self.model, batch, temperature, with_entropy=True)
                    yield loss(micro.index, log_probs, batch.response_mask, entropy)
                else:
                    log_probs = token_log_probs(self.model, batch, temperature)
                    yield loss(micro.index, log_probs, batch.response_mask)

        return self.learner.update(parts(), step)

    def stream_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter by name, one at a time, tied ones once: what a generation engine loads.

        Names are those of a model without adapters, whose weights hold what these do.
        """
        yield from merged_parameters(self.model)
