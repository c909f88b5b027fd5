"""The learned judge of a whole completion."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from posttrain.model.batch import Row
from posttrain.model.heads import RewardModule
from posttrain.roles.batches import Forward, per_row


class RewardModel:
    """Owns a reward model that never changes."""

    def __init__(self, module: RewardModule, forward: Forward) -> None:
        self.module = module
        self.forward = forward

    def score(self, rows: Sequence[Row]) -> Tensor:
        """Reward [N] of each prompt with its completion, read at the last real token."""
        return per_row(rows, self.forward.of(self.module), self.module)
