"""Methods with a critic: PPO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from posttrain.algorithms.aggregate import aggregate, normaliser
from posttrain.algorithms.whiten import whiten
from posttrain.config.runs import PPO
from posttrain.model.heads import ValueModule
from posttrain.model.load import load_reward_module
from posttrain.roles.actor import Actor, TokenLoss
from posttrain.roles.critic import Critic
from posttrain.roles.learner import Metrics, Stats
from posttrain.roles.shared_actor import SharedActor
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

    The critic is a model of its own that begins as a copy of the reward model, trunk and head (arXiv:2203.02155 section
    C.4), or with `shared_trunk` a second head on the policy's trunk.

    parts: also `gae` (rewards, values, mask) -> (advantages, returns), all [N, R]; `value_loss` (values, old values,
    returns, mask) -> losses, all [b, R].
    """

    settings: PPO

    def __init__(self, context: Context, parts: Parts) -> None:
        super().__init__(context, parts)
        self.critic = None if self.settings.shared_trunk else self._critic(context)
        if self.critic is not None:
            self.learners = {**self.learners, "critic": self.critic.learner}

    def make_actor(self, model: PreTrainedModel) -> Actor:
        """The policy's role, with the critic in it where they share a trunk."""
        role = SharedActor if self.settings.shared_trunk else Actor
        return role(model, self.settings, self.forward, self.context.seed)

    def estimate(self, samples: Sequence[Sample]) -> ValuedExperience:
        """Rewards per token, values, advantages and returns."""
        base = self.tensors(samples)
        if isinstance(self.actor, SharedActor):
            base.old, values = self.actor.log_probs_and_values(base.rows)
        else:
            assert self.critic is not None
            base, values = self.prepared(base), self.critic.values(base.rows)
        advantages, returns = self.parts["gae"](self.rewards(base), values, base.mask)
        fixed = {**vars(base), "advantages": whiten(advantages, base.mask)}
        return ValuedExperience(**fixed, values=values, returns=returns)

    def update(self, experience: Experience, step: int) -> Metrics:
        """The critic's optimiser steps, then the policy's; with a shared trunk, steps on both losses at once."""
        assert isinstance(experience, ValuedExperience)
        if self.critic is not None:
            return {**self._update_critic(self.critic, experience, step), **super().update(experience, step)}
        return self.policy_metrics(self.optimise(experience, step, self.joint_loss), experience)

    def joint_loss(self, experience: ValuedExperience, numbers: Sequence[int]) -> TokenLoss:
        """The policy's loss and `value_coef` times the critic's."""
        policy, value = self.policy_loss(experience, numbers), self.value_loss(experience, numbers)

        def loss(
            index: Tensor, log_probs: Tensor, mask: Tensor, entropy: Tensor | None, values: Tensor
        ) -> tuple[Tensor, Stats]:
            of_policy, stats = policy(index, log_probs, mask, entropy)
            of_values, _ = value(index, values, mask)
            return of_policy + self.settings.value_coef * of_values, {**stats, "value_loss": of_values.detach()}

        return loss

    def value_loss(self, experience: ValuedExperience, numbers: Sequence[int]) -> TokenLoss:
        """The critic's clipped loss of one minibatch of rows, a mean over all its tokens."""
        chosen = torch.tensor(numbers, device=experience.mask.device)
        count = normaliser(experience.mask[chosen], "token-mean")

        def loss(index: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Stats]:
            old, returns = (v[chosen[index], : mask.shape[1]] for v in (experience.values, experience.returns))
            losses = self.parts["value_loss"](values, old, returns, mask)
            return aggregate(losses, mask, "token-mean", count=count), {}

        return loss

    def _critic(self, context: Context) -> Critic:
        folder = context.inputs["reward_model"] / "model"
        module = ValueModule.from_reward(load_reward_module(folder, context.config.model, context.device))
        rate = self.settings.critic_learning_rate
        return Critic(module, self.settings, rate, self.forward_of(module), context.seed)

    def _update_critic(self, critic: Critic, experience: ValuedExperience, step: int) -> Metrics:
        found = [
            critic.update([experience.rows[i] for i in numbers], self.value_loss(experience, numbers), step)
            for numbers in self.minibatches(experience.groups.tolist(), step)
        ]
        means = mean_metrics(found)
        return {"train/value_loss": means["loss"], "train/critic_grad_norm": means["grad_norm"]}
