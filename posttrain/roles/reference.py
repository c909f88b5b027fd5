"""The frozen policy that training is held close to."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from transformers import PreTrainedModel

from posttrain.model.batch import Row, token_log_probs
from posttrain.model.lora import adapters_off
from posttrain.roles.batches import Forward, per_token


class Reference:
    """A policy that never changes: a model of its own, or the training one with its adapters switched off."""

    def __init__(self, model: PreTrainedModel, forward: Forward) -> None:
        self.model = model
        self.forward = forward

    def log_probs(self, rows: Sequence[Row]) -> Tensor:
        """log p of every response token [N, R], nats, at the sampling temperature; zeros where there is no token."""
        with adapters_off(self.model):
            return per_token(
                rows,
                self.forward.of(self.model),
                lambda batch: token_log_probs(self.model, batch, self.forward.temperature),
            )
