"""Training on the tokens of given completions: SFT."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from transformers import PreTrainedModel

from posttrain.algorithms.aggregate import aggregate
from posttrain.config.schema import Training
from posttrain.model.batch import Row
from posttrain.roles.actor import Actor
from posttrain.roles.batches import Forward
from posttrain.roles.learner import Metrics, Stats
from posttrain.trainer.metrics import tokens_of, train_metrics
from posttrain.trainer.order import Order, data_digest
from posttrain.trainer.trainer import Job


class SupervisedTokens(Job):
    """SFT: the mean negative log-likelihood of all completion tokens of a minibatch, in nats a token."""

    def __init__(
        self, model: PreTrainedModel, rows: Sequence[Row], settings: Training, forward: Forward, seed: int
    ) -> None:
        self.rows = rows
        self.actor = Actor(model, settings, forward)
        self.learners = {"actor": self.actor.learner}
        self.order = Order(seed, len(rows), settings.minibatch)
        self.data = data_digest(rows)

    def step(self, step: int) -> tuple[Metrics, int]:
        """One optimiser step."""
        units = [(self.rows[i],) for i in self.order.rows(step)]
        count = sum(len(completion) for ((_, completion),) in units)

        def loss(_: Tensor, log_probs: Tensor, mask: Tensor) -> tuple[Tensor, Stats]:
            return aggregate(-log_probs, mask, "token-mean", count=count), {}

        return train_metrics(self.actor.update(units, loss, step)), tokens_of(units)

    def evaluate(self, rows: Sequence[Row]) -> Metrics:
        """Mean negative log-likelihood of the completion tokens of `rows`."""
        log_probs = self.actor.log_probs(rows)
        return {"eval/loss": -float(log_probs.double().sum()) / sum(len(completion) for _, completion in rows)}
