"""Policy-gradient methods: what their losses, penalties and optimiser steps have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from posttrain.algorithms.aggregate import Mode, aggregate, normaliser
from posttrain.algorithms.kl import adapted_coef, k3, penalised_rewards
from posttrain.config.runs import Online
from posttrain.model.batch import Row
from posttrain.roles.actor import TokenLoss
from posttrain.roles.learner import Metrics, Stats
from posttrain.trainer.context import Context
from posttrain.trainer.experience import Experience
from posttrain.trainer.metrics import mean_metrics, train_metrics
from posttrain.trainer.online import OnlineJob
from posttrain.trainer.parts import Parts

LossOf = Callable[[Any, Sequence[int]], TokenLoss]

# Mean difference of the generator's and the trainer's log-probabilities, nats, below which they are one number.
GAP_GATE = 1e-4


class PolicyGradient(OnlineJob):
    """The policy's loss, with a KL penalty in the reward or in the loss, and a coefficient that may adapt.

    parts: `policy_loss` (log_probs, old, advantages, mask: [b, R]) -> (losses, statistics: [b, R]); `kl_estimator`
    (log_probs, reference, mask: [N, R]) -> [N, R], nats.
    """

    settings: Online

    def __init__(self, context: Context, parts: Parts) -> None:
        super().__init__(context, parts)
        self.kl_coef = self.settings.kl_coef
        self.gap_is_small = False

    @property
    def wants_reference(self) -> bool:
        """Where a nat of KL has a price."""
        return self.settings.kl_coef > 0

    def prepared(self, base: Experience) -> Experience:
        """The experience with its old log-probabilities, where something needs them before the first update.

        The generator's own serve where the last step's first forward pass has found them to be the trainer's.
        """
        penalised = base.reference is not None and self.settings.kl_in == "reward"
        if penalised or not self.one_update(base.rows):
            base.old = base.sampled if self.gap_is_small else self.actor.log_probs(base.rows)
        return base

    def one_update(self, rows: Sequence[Row]) -> bool:
        """Whether the step has one optimiser step only."""
        return self.settings.epochs == 1 and len(rows) <= self.settings.minibatch

    def rewards(self, base: Experience) -> Tensor:
        """[N, R]: each row's score at its last token, and at each token the price of its KL if the reward pays it."""
        kl = torch.zeros_like(base.sampled)
        if base.reference is not None and base.old is not None and self.settings.kl_in == "reward":
            kl = self.parts["kl_estimator"](base.old, base.reference, base.mask)
        return penalised_rewards(base.scores, kl, base.mask, self.kl_coef)

    def update(self, experience: Experience, step: int) -> Metrics:
        """The policy's optimiser steps."""
        return self.policy_metrics(self.optimise(experience, step, self.policy_loss), experience)

    def optimise(self, experience: Experience, step: int, loss: LossOf) -> list[Metrics]:
        """The metrics of each optimiser step on a loss of (experience, numbers of the minibatch's rows)."""
        found = []
        for numbers in self.minibatches(experience.groups.tolist(), step):
            units = [(experience.rows[i],) for i in numbers]
            with_entropy = self.settings.entropy_coef > 0
            found.append(self.actor.update(units, loss(experience, numbers), step, with_entropy=with_entropy))
        return found

    def policy_metrics(self, found: Sequence[Metrics], experience: Experience) -> Metrics:
        """What is logged of the optimiser steps. The generator's gap is that of the first one, before any update."""
        metrics = train_metrics(mean_metrics(found))
        del metrics["train/logprob_gap"]
        gap = found[0]["logprob_gap"]
        self.gap_is_small = gap <= GAP_GATE
        metrics["rollout/logprob_gap"] = gap
        if self.settings.kl_target is not None:
            metrics["train/kl_coef"] = self.kl_coef
            kl, samples = self.distance(experience), len(experience.rows)
            self.kl_coef = adapted_coef(
                self.kl_coef, kl, target=self.settings.kl_target, horizon=self.settings.kl_horizon, samples=samples
            )
        return metrics

    def policy_loss(self, experience: Experience, numbers: Sequence[int]) -> TokenLoss:
        """The loss of one minibatch of rows, normalised by the counts of all of it."""
        chosen = torch.tensor(numbers, device=experience.mask.device)
        tokens = normaliser(experience.mask[chosen], "token-mean")
        mode: Mode = self.settings.aggregation
        count = normaliser(experience.mask[chosen], mode)
        if mode == "sequence-sum":
            count *= self.settings.max_new_tokens

        def loss(index: Tensor, log_probs: Tensor, mask: Tensor, entropy: Tensor | None = None) -> tuple[Tensor, Stats]:
            def of(values: Tensor) -> Tensor:
                return values[chosen[index], : mask.shape[1]]

            old = log_probs.detach() if experience.old is None else of(experience.old)
            losses, stats = self.parts["policy_loss"](log_probs, old, of(experience.advantages), mask)
            stats = {**stats, "logprob_gap": (log_probs.detach() - of(experience.sampled)).abs()}
            if experience.reference is not None:
                reference = of(experience.reference)
                stats["kl"] = k3(old, reference, mask)
                if self.settings.kl_in == "loss" and self.kl_coef > 0:
                    losses = losses + self.kl_coef * self.parts["kl_estimator"](log_probs, reference, mask)
            if entropy is not None:
                stats["entropy"] = entropy.detach()
                losses = losses - self.settings.entropy_coef * entropy
            means = {name: aggregate(values, mask, "token-mean", count=tokens) for name, values in stats.items()}
            return aggregate(losses, mask, mode, count=count), means

        return loss

    def counters(self) -> dict[str, Any]:
        """Also the coefficient, and whether the generator's log-probabilities are the trainer's."""
        return {**super().counters(), "kl_coef": self.kl_coef, "gap_is_small": self.gap_is_small}

    def restored(self, counters: Mapping[str, Any]) -> None:
        """Takes them back."""
        super().restored(counters)
        self.kl_coef, self.gap_is_small = counters["kl_coef"], counters["gap_is_small"]
