"""Training on the tokens of given completions: SFT."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor
from transformers import PreTrainedModel

from posttrain.algorithms.aggregate import aggregate
from posttrain.config.schema import SFT
from posttrain.model.batch import Row, token_log_probs
from posttrain.model.noise import noisy_embeddings
from posttrain.roles.actor import Actor
from posttrain.roles.batches import Forward, Microbatch, Unit, split
from posttrain.roles.learner import Metrics, Stats
from posttrain.runtime.seeds import derive
from posttrain.trainer.metrics import tokens_of, train_metrics
from posttrain.trainer.order import Order, data_digest
from posttrain.trainer.trainer import Job


class SupervisedTokens(Job):
    """SFT: the mean negative log-likelihood of all completion tokens of a minibatch, in nats a token."""

    def __init__(self, model: PreTrainedModel, rows: Sequence[Row], settings: SFT, forward: Forward, seed: int) -> None:
        self.rows, self.seed, self.alpha = rows, seed, settings.neftune_alpha
        self.actor = Actor(model, settings, forward, seed)
        self.forward = forward.of(model) if self.alpha == 0 else forward
        self.learners = {"actor": self.actor.learner}
        self.order = Order(seed, len(rows), settings.minibatch)
        self.data = data_digest(rows)

    def step(self, step: int) -> tuple[Metrics, int]:
        """One optimiser step."""
        units = [(self.rows[i],) for i in self.order.rows(step)]
        metrics = self.actor.learner.update(self._losses(units, step), step)
        return train_metrics(metrics), tokens_of(units)

    def evaluate(self, rows: Sequence[Row]) -> Metrics:
        """Mean negative log-likelihood of the completion tokens of `rows`, without noise."""
        log_probs = self.actor.log_probs(rows)
        return {"eval/loss": -float(log_probs.double().sum()) / sum(len(completion) for _, completion in rows)}

    def _losses(self, units: Sequence[Unit], step: int) -> Iterator[tuple[Tensor, Stats]]:
        count = sum(len(completion) for ((_, completion),) in units)
        for micro in split(units, self.forward):
            with self._noise(micro, step):
                log_probs = token_log_probs(self.actor.model, micro.batch)
            yield aggregate(-log_probs, micro.batch.response_mask, "token-mean", count=count), {}

    def _noise(self, micro: Microbatch, step: int) -> AbstractContextManager[None]:
        if self.alpha == 0:
            return nullcontext()
        seeds = [derive(self.seed, "noise", step, number) for number in micro.index.tolist()]
        return noisy_embeddings(self.actor.model, micro.batch, self.alpha, seeds)
