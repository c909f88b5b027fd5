"""The value function that trains beside the policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from posttrain.config.sections import Training
from posttrain.model.batch import Row
from posttrain.model.heads import ValueModule
from posttrain.roles.actor import TokenLoss
from posttrain.roles.batches import Forward, per_token, split
from posttrain.roles.learner import Learner, Metrics, Stats, let_train
from posttrain.runtime.seeds import derive


class Critic:
    """Owns the value model and its optimiser. Its values never see the sampling temperature."""

    def __init__(self, module: ValueModule, settings: Training, peak_rate: float, forward: Forward, seed: int) -> None:
        self.module = module
        self.forward = forward
        let_train(module, settings, derive(seed, "lora", "critic"), [module.head])
        self.learner = Learner(module, settings, peak_rate)

    def values(self, rows: Sequence[Row]) -> Tensor:
        """Value before each response token is emitted [N, R], in units of reward, without gradient."""
        return per_token(rows, self.forward.of(self.module), self.module)

    def update(self, rows: Sequence[Row], loss: TokenLoss, step: int) -> Metrics:
        """One optimiser step on a minibatch of rows; `loss` gets the values of each micro-batch."""

        def parts() -> Iterator[tuple[Tensor, Stats]]:
            for micro in split([(row,) for row in rows], self.forward.of(self.module)):
                yield loss(micro.index, self.module(micro.batch), micro.batch.response_mask)

        return self.learner.update(parts(), step)
