"""Learning from what the policy samples while it trains. `OnlineJob.step` is the whole loop."""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from posttrain.algorithms.aggregate import Mode, aggregate, normaliser
from posttrain.algorithms.kl import k3
from posttrain.config.schema import Online
from posttrain.data.tokenizer import load_tokenizer
from posttrain.errors import UserError
from posttrain.model.batch import Row
from posttrain.model.frozen import FrozenLayers
from posttrain.model.layers import share_first
from posttrain.model.load import load_causal_lm, load_reward_module
from posttrain.roles.actor import Actor, TokenLoss
from posttrain.roles.batches import Forward, response_mask
from posttrain.roles.learner import Metrics, Stats
from posttrain.roles.reference import Reference
from posttrain.roles.reward_model import RewardModel
from posttrain.rollout.buffer import ReplayBuffer, Sample
from posttrain.rollout.engine import Sampling
from posttrain.rollout.manager import RolloutManager
from posttrain.rollout.transformers_engine import TransformersEngine
from posttrain.runtime.seeds import derive
from posttrain.trainer.context import Context
from posttrain.trainer.distance import over_budget, sequence_kl
from posttrain.trainer.metrics import mean_metrics, tokens_of, train_metrics
from posttrain.trainer.order import Order, data_digest, permutation
from posttrain.trainer.rows import rows_of, training_prompts
from posttrain.trainer.trainer import Job

Parts = Mapping[str, Callable[..., Any]]


@dataclass(kw_only=True)
class Experience:
    """A step's samples as tensors: N rows, R the longest response, float32 log-probabilities in nats.

    sampled [N, R]: the generator's log-probabilities. scores [N]: the reward, less the penalty of a truncated sample.
    groups [N]: the same number for samples of one prompt. advantages [N, R]. old [N, R]: the trainer's
    log-probabilities before the first update; None where there is one update only, whose own log-probabilities they
    then are. reference [N, R]: None without a KL penalty.
    """

    rows: list[Row]
    mask: Tensor
    sampled: Tensor
    scores: Tensor
    groups: Tensor
    advantages: Tensor
    old: Tensor | None = None
    reference: Tensor | None = None


class OnlineJob(Job):
    """Roles and loop that all online methods share; a method says how advantages are made and what is updated."""

    def __init__(self, context: Context, parts: Parts) -> None:
        self.context, self.parts = context, parts
        self.settings: Online = context.config.run
        folder, device = context.inputs["sft"] / "model", context.device
        tokenizer = load_tokenizer(folder)
        self.forward = Forward(tokenizer.pad_id, self.settings.microbatch_tokens, device, self.settings.temperature)
        self.sampling = Sampling(
            self.settings.max_new_tokens, self.settings.temperature, tokenizer.eos_id, self.settings.generation_batch
        )
        model = load_causal_lm(folder, context.config.model, device)
        self.actor = Actor(model, self.settings, self.forward)
        self.frozen: FrozenLayers | None = None
        if self.actor.frozen_layers:
            budget = self.settings.microbatch_tokens
            self.frozen = FrozenLayers(model, self.actor.frozen_layers, tokenizer.pad_id, budget, device)
        self.actor.forward = self.forward_of(model)
        self.rollout = RolloutManager(TransformersEngine(self._generating_model(model, folder)))
        self.reference: Reference | None = None
        if self.settings.kl_coef > 0 or self.settings.kl_budget is not None:
            reference = load_causal_lm(folder, context.config.model, device)
            self.reference = Reference(reference, self.forward_of(reference))
        judge = load_reward_module(context.inputs["reward_model"] / "model", context.config.model, device)
        self.reward = RewardModel(judge, self.forward_of(judge))
        self.buffer = ReplayBuffer()
        self.prompts = training_prompts(context)
        self.order = Order(context.seed, len(self.prompts), self.settings.prompts_per_step)
        self.data = data_digest([ids] for _, ids in self.prompts)
        self.learners = {"actor": self.actor.learner}

    def step(self, step: int) -> tuple[Metrics, int]:
        """Generate, score, update, sync."""
        prompts = [self.prompts[i] for i in self.order.rows(step)]
        seed = derive(self.context.seed, "rollout", step)
        samples = self.rollout.generate(prompts, self.settings.samples_per_prompt, self.sampling, seed)
        if self.frozen is not None:
            self.frozen.keep(rows_of(samples))
        self.buffer.add(self.score(samples))
        experience = self.estimate(self.buffer.take())
        metrics, tokens = rollout_metrics(samples), tokens_of([experience.rows])
        if experience.reference is not None:
            metrics["rollout/kl"] = self.distance(experience)
            self.ended = over_budget(self.context, step, metrics["rollout/kl"], self.settings.kl_budget)
        if self.ended:  # these samples are from a policy that is far enough
            return metrics, tokens
        metrics.update(self.update(experience, step))
        self.rollout.load_weights(self.actor.stream_weights())
        return metrics, tokens

    def forward_of(self, module: nn.Module) -> Forward:
        """How a role runs its model: with the policy's frozen layers kept, where the model has the same ones."""
        if self.frozen is None or not share_first(self.actor.model, module, self.actor.frozen_layers):
            return self.forward
        return dataclasses.replace(self.forward, frozen=self.frozen)

    def _generating_model(self, model: PreTrainedModel, folder: Path) -> PreTrainedModel:
        """The policy itself, or a copy where generation has a precision of its own."""
        settings = self.context.config.model
        if settings.for_generation() == settings:
            return model
        return load_causal_lm(folder, settings.for_generation(), self.context.device)

    def score(self, samples: Sequence[Sample]) -> list[Sample]:
        """Gives each sample its reward; returns those whose reward is a finite number.

        Raises:
            UserError: more than the share `failed_rewards` are not.
        """
        rewards = self.reward.score(rows_of(samples))
        for sample, reward in zip(samples, rewards.tolist(), strict=True):
            sample.reward = reward
        kept = [sample for sample, reward in zip(samples, rewards.tolist(), strict=True) if math.isfinite(reward)]
        failed = len(samples) - len(kept)
        if failed > self.settings.failed_rewards * len(samples):
            raise UserError(
                f"{failed} of {len(samples)} rewards are no finite numbers, more than the share failed_rewards "
                f"{self.settings.failed_rewards:g}; look at the reward model's training"
            )
        return kept

    @abstractmethod
    def estimate(self, samples: Sequence[Sample]) -> Experience:
        """Advantages and all else that stays fixed during the step's updates."""

    @abstractmethod
    def update(self, experience: Experience, step: int) -> Metrics:
        """All optimiser steps of this step."""

    def tensors(self, samples: Sequence[Sample]) -> Experience:
        """The samples as an experience with zero advantages; the reference's log-probabilities where it is needed."""
        rows = rows_of(samples)
        mask = response_mask(rows, self.forward.device)
        sampled = torch.zeros(mask.shape, device=mask.device)
        sampled[mask] = torch.tensor([p for sample in samples for p in sample.log_probs], device=mask.device)
        penalty = self.settings.truncated_penalty
        scores = [(s.reward or 0.0) - penalty * (s.finish == "length") for s in samples]
        return Experience(
            rows=rows,
            mask=mask,
            sampled=sampled,
            scores=torch.tensor(scores, device=mask.device),
            groups=torch.tensor([sample.group for sample in samples], device=mask.device),
            advantages=torch.zeros(mask.shape, device=mask.device),
            reference=self.reference.log_probs(rows) if self.reference else None,
        )

    def distance(self, experience: Experience) -> float:
        """KL(policy || SFT) in nats per sequence, on the step's samples."""
        policy = experience.sampled if experience.old is None else experience.old
        assert experience.reference is not None
        return sequence_kl(policy, experience.reference, experience.mask)

    def one_update(self, rows: Sequence[Row]) -> bool:
        """Whether the step has one optimiser step only."""
        return self.settings.epochs == 1 and len(rows) <= self.settings.minibatch

    def minibatches(self, total: int, step: int) -> list[list[int]]:
        """Row numbers of each optimiser step: `epochs` passes over the samples, each in an order of its own."""
        size, seed = self.settings.minibatch, self.context.seed
        orders = [permutation(total, seed, "step", step, "epoch", i) for i in range(self.settings.epochs)]
        return [order[first : first + size] for order in orders for first in range(0, total, size)]

    def update_actor(self, experience: Experience, step: int, mode: Mode, kl_in_loss: float) -> Metrics:
        """The policy's optimiser steps: the clipped loss, and `kl_in_loss` times the KL to the reference."""
        found = []
        for numbers in self.minibatches(len(experience.rows), step):
            loss = self.policy_loss(experience, numbers, mode, kl_in_loss)
            found.append(self.actor.update([(experience.rows[i],) for i in numbers], loss, step))
        metrics = train_metrics(mean_metrics(found))
        metrics["rollout/logprob_gap"] = metrics.pop("train/logprob_gap")
        return metrics

    def policy_loss(self, experience: Experience, numbers: Sequence[int], mode: Mode, kl_in_loss: float) -> TokenLoss:
        """The loss of one minibatch of rows, normalised by the counts of all of it."""
        chosen = torch.tensor(numbers, device=experience.mask.device)
        tokens = normaliser(experience.mask[chosen], "token-mean")
        count = normaliser(experience.mask[chosen], mode)

        def loss(index: Tensor, log_probs: Tensor, mask: Tensor) -> tuple[Tensor, Stats]:
            def of(values: Tensor) -> Tensor:
                return values[chosen[index], : mask.shape[1]]

            old = log_probs.detach() if experience.old is None else of(experience.old)
            losses, stats = self.parts["policy_loss"](
                log_probs, old, of(experience.advantages), mask, self.settings.clip_low, self.settings.clip_high
            )
            stats["logprob_gap"] = (old - of(experience.sampled)).abs()
            if experience.reference is not None:
                reference = of(experience.reference)
                stats["kl"] = k3(old, reference, mask)
                if kl_in_loss > 0:
                    losses = losses + kl_in_loss * self.parts["kl"](log_probs, reference, mask)
            means = {name: aggregate(values, mask, "token-mean", count=tokens) for name, values in stats.items()}
            return aggregate(losses, mask, mode, count=count), means

        return loss

    def counters(self) -> dict[str, Any]:
        """Groups and policy versions so far, and the samples that wait in the buffer."""
        return {"rollout": self.rollout.state_dict(), "buffer": self.buffer.state_dict()}

    def restored(self, counters: Mapping[str, Any]) -> None:
        """The engine gets the restored weights before the counters say which version they are."""
        self.rollout.load_weights(self.actor.stream_weights())
        self.rollout.load_state_dict(counters["rollout"])
        self.buffer.load_state_dict(counters["buffer"])


def rollout_metrics(samples: Sequence[Sample]) -> Metrics:
    """Mean reward of the samples that have one, mean length in tokens, share cut by the limit, number without one."""
    rewards = [s.reward for s in samples if s.reward is not None and math.isfinite(s.reward)]
    return {
        "rollout/reward": sum(rewards) / len(rewards),
        "rollout/length": sum(len(s.completion_ids) for s in samples) / len(samples),
        "rollout/truncated": sum(s.finish == "length" for s in samples) / len(samples),
        "rollout/excluded": float(len(samples) - len(rewards)),
    }
