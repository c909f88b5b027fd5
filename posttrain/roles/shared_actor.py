"""The policy that trains with a value head on its own trunk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor
from transformers import PreTrainedModel

from posttrain.config.sections import Training
from posttrain.model.batch import SequenceBatch
from posttrain.model.heads import SharedTrunk, scalar_head
from posttrain.model.layers import trunk_of
from posttrain.model.packing import Row, Unit
from posttrain.roles.actor import Actor, TokenLoss
from posttrain.roles.batches import Forward, per_token_each, split
from posttrain.roles.learner import Learner, Metrics, Stats, let_train
from posttrain.runtime.seeds import derive


class SharedActor(Actor):
    """Owns policy and critic as one module with one optimiser: one pass gives log-probabilities and values.

    `update` gives its loss the values [b, R] as a fifth argument. The value head is drawn from the seed.
    """

    def __init__(self, model: PreTrainedModel, settings: Training, forward: Forward, seed: int) -> None:
        self.model, self.forward = model, forward
        self.module = SharedTrunk(model, scalar_head(trunk_of(model), derive(seed, "value head")))
        self.frozen_layers = let_train(self.module, settings, derive(seed, "lora"), [self.module.head])
        self.learner = Learner(self.module, settings, settings.learning_rate)

    def log_probs_and_values(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
        """log p of every response token and the value before it, two [N, R], without gradient."""

        def run(batch: SequenceBatch) -> tuple[Tensor, Tensor]:
            log_probs, _, values = self.module(batch, self.forward.temperature)
            return log_probs, values

        log_probs, values = per_token_each(rows, self.forward.of(self.model), run, 2)
        return log_probs, values

    def update(self, units: Sequence[Unit], loss: TokenLoss, step: int, *, with_entropy: bool = False) -> Metrics:
        """One optimiser step on a minibatch of units."""

        def parts() -> Iterator[tuple[Tensor, Stats]]:
            for micro in split(units, self.forward.of(self.model)):
                log_probs, entropy, values = self.module(micro.batch, self.forward.temperature, with_entropy)
                mask = micro.batch.response_mask
                yield loss(micro.index, log_probs, mask, entropy if with_entropy else None, values)

        return self.learner.update(parts(), step)
