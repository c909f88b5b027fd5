"""Methods with a critic: PPO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from posttrain.algorithms.aggregate import aggregate, normaliser
from posttrain.algorithms.whiten import whiten
from posttrain.config.runs import PPO
from posttrain.model.heads import ValueModule
from posttrain.model.load import load_reward_module
from posttrain.roles.actor import TokenLoss
from posttrain.roles.critic import Critic
from posttrain.roles.learner import Metrics, Stats
from posttrain.rollout.buffer import Sample
from posttrain.trainer.context import Context
from posttrain.trainer.experience import Experience
from posttrain.trainer.metrics import mean_metrics
from posttrain.trainer.parts import Parts
from posttrain.trainer.policy_gradient import PolicyGradient


@dataclass(kw_only=True)
class ValuedExperience(Experience):
    """Also what the critic learns from, [N, R] in units of reward: its values before the updates, and the returns."""

    values: Tensor
    returns: Tensor


class ActorCritic(PolicyGradient):
    """Advantages are whitened over all tokens of the step.

    The critic begins as a copy of the reward model, trunk and head (arXiv:2203.02155 section C.4).

    parts: also `gae` (rewards, values, mask) -> (advantages, returns), all [N, R]; `value_loss` (values, old values,
    returns, mask) -> losses, all [b, R].
    """

    settings: PPO

    def __init__(self, context: Context, parts: Parts) -> None:
        super().__init__(context, parts)
        folder = context.inputs["reward_model"] / "model"
        module = ValueModule.from_reward(load_reward_module(folder, context.config.model, context.device))
        rate, forward = self.settings.critic_learning_rate, self.forward_of(module)
        self.critic = Critic(module, self.settings, rate, forward, context.seed)
        self.learners = {"actor": self.actor.learner, "critic": self.critic.learner}

    def estimate(self, samples: Sequence[Sample]) -> ValuedExperience:
        """Rewards per token, values, advantages and returns."""
        base = self.prepared(self.tensors(samples))
        values = self.critic.values(base.rows)
        advantages, returns = self.parts["gae"](self.rewards(base), values, base.mask)
        fixed = {**vars(base), "advantages": whiten(advantages, base.mask)}
        return ValuedExperience(**fixed, values=values, returns=returns)

    def update(self, experience: Experience, step: int) -> Metrics:
        """The critic's optimiser steps, then the policy's."""
        assert isinstance(experience, ValuedExperience)
        return {**self.update_critic(experience, step), **super().update(experience, step)}

    def update_critic(self, experience: ValuedExperience, step: int) -> Metrics:
        """The clipped value loss, a mean over tokens."""
        found = [
            self.critic.update([experience.rows[i] for i in numbers], self.value_loss(experience, numbers), step)
            for numbers in self.minibatches(len(experience.rows), step)
        ]
        means = mean_metrics(found)
        return {"train/value_loss": means["loss"], "train/critic_grad_norm": means["grad_norm"]}

    def value_loss(self, experience: ValuedExperience, numbers: Sequence[int]) -> TokenLoss:
        """The critic's loss of one minibatch of rows, normalised by all its tokens."""
        chosen = torch.tensor(numbers, device=experience.mask.device)
        count = normaliser(experience.mask[chosen], "token-mean")

        def loss(index: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Stats]:
            old, returns = (v[chosen[index], : mask.shape[1]] for v in (experience.values, experience.returns))
            losses = self.parts["value_loss"](values, old, returns, mask)
            return aggregate(losses, mask, "token-mean", count=count), {}

        return loss
