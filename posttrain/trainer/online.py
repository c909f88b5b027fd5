"""Learning from what the policy samples while it trains. `OnlineJob.step` is the whole loop."""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from posttrain.algorithms.overlong import overlong_penalty
from posttrain.config.runs import Sampled
from posttrain.data.tokenizer import load_tokenizer
from posttrain.errors import UserError
from posttrain.model.frozen import FrozenLayers
from posttrain.model.layers import share_first
from posttrain.model.load import load_causal_lm, load_reward_module
from posttrain.roles.actor import Actor
from posttrain.roles.batches import Forward, response_mask
from posttrain.roles.learner import Metrics
from posttrain.roles.reference import Reference
from posttrain.roles.reward_model import RewardModel
from posttrain.rollout.buffer import ReplayBuffer, Sample
from posttrain.rollout.engine import Sampling
from posttrain.rollout.manager import RolloutManager
from posttrain.rollout.transformers_engine import TransformersEngine
from posttrain.runtime.seeds import derive
from posttrain.trainer.context import Context
from posttrain.trainer.distance import over_budget, sequence_kl
from posttrain.trainer.experience import Experience, rollout_metrics
from posttrain.trainer.metrics import tokens_of
from posttrain.trainer.order import Order, data_digest, permutation
from posttrain.trainer.parts import Parts
from posttrain.trainer.rows import rows_of, training_prompts
from posttrain.trainer.trainer import Job


class OnlineJob(Job):
    """Roles and loop that all online methods share; a method says what its samples are worth and what is updated."""

    def __init__(self, context: Context, parts: Parts) -> None:
        self.context, self.parts = context, parts
        self.settings: Sampled = context.config.run
        folder, device = context.inputs["sft"] / "model", context.device
        tokenizer = load_tokenizer(folder)
        self.forward = Forward(tokenizer.pad_id, self.settings.microbatch_tokens, device, self.settings.temperature)
        self.sampling = Sampling(
            self.settings.max_new_tokens, self.settings.temperature, tokenizer.eos_id, self.settings.generation_batch
        )
        model = load_causal_lm(folder, context.config.model, device)
        self.actor = self.make_actor(model)
        self.frozen: FrozenLayers | None = None
        if self.actor.frozen_layers:
            budget = self.settings.microbatch_tokens
            self.frozen = FrozenLayers(model, self.actor.frozen_layers, tokenizer.pad_id, budget, device)
        self.actor.forward = self.forward_of(model)
        self.rollout = RolloutManager(TransformersEngine(self._generating_model(model, folder)))
        self.reference: Reference | None = None
        if self.wants_reference or self.settings.kl_budget is not None:
            reference = model if self.settings.lora else load_causal_lm(folder, context.config.model, device)
            self.reference = Reference(reference, self.forward_of(reference))
        judge = load_reward_module(context.inputs["reward_model"] / "model", context.config.model, device)
        self.reward = RewardModel(judge, self.forward_of(judge))
        self.buffer = ReplayBuffer()
        self.prompts = training_prompts(context)
        self.order = Order(context.seed, len(self.prompts), self.settings.prompts_per_step)
        self.data = data_digest([ids] for _, ids in self.prompts)
        self.learners = {"actor": self.actor.learner}

    @property
    @abstractmethod
    def wants_reference(self) -> bool:
        """Whether the method itself reads the reference's log-probabilities; a KL budget does in any case."""

    def make_actor(self, model: PreTrainedModel) -> Actor:
        """The policy's role."""
        return Actor(model, self.settings, self.forward, self.context.seed)

    def step(self, step: int) -> tuple[Metrics, int]:
        """Generate, score, update, sync."""
        samples, metrics = self.collect(step)
        self.buffer.add(samples)
        experience = self.estimate(self.buffer.take())
        if experience is None:
            return metrics, tokens_of([rows_of(samples)])
        tokens = tokens_of([experience.rows])
        if experience.reference is not None:
            metrics["rollout/kl"] = self.distance(experience)
            self.ended = over_budget(self.context, step, metrics["rollout/kl"], self.settings.kl_budget)
        if self.ended:  # these samples are from a policy that is far enough
            return metrics, tokens
        metrics.update(self.update(experience, step))
        self.rollout.load_weights(self.actor.stream_weights())
        return metrics, tokens

    def collect(self, step: int) -> tuple[list[Sample], Metrics]:
        """The samples that the step learns from, and what is logged of all that were made."""
        samples = self.generate(step, 0)
        return self.score(samples), rollout_metrics(samples)

    def generate(self, step: int, batch: int) -> list[Sample]:
        """Samples for batch `batch` of the step's prompts: 0 is the step's own, others are drawn from all prompts."""
        size = self.settings.prompts_per_step
        numbers = self.order.rows(step)
        if batch > 0:
            numbers = permutation(len(self.prompts), self.context.seed, "further prompts", step, batch)[:size]
        seed = derive(self.context.seed, "rollout", step, *([batch] if batch else []))
        prompts = [self.prompts[i] for i in numbers]
        samples = self.rollout.generate(prompts, self.settings.samples_per_prompt, self.sampling, seed)
        if self.frozen is not None:
            self.frozen.keep(rows_of(samples))
        return samples

    def score(self, samples: Sequence[Sample]) -> list[Sample]:
        """Gives each sample its reward; returns those whose reward is a finite number.

        Raises:
            UserError: more than the share `failed_rewards` are not.
        """
        rewards = self.reward.score(rows_of(samples)).tolist()
        for sample, reward in zip(samples, rewards, strict=True):
            sample.reward = reward
        kept = [sample for sample, reward in zip(samples, rewards, strict=True) if math.isfinite(reward)]
        failed = len(samples) - len(kept)
        if failed > self.settings.failed_rewards * len(samples):
            raise UserError(
                f"{failed} of {len(samples)} rewards are no finite numbers, more than the share failed_rewards "
                f"{self.settings.failed_rewards:g}; look at the reward model's training"
            )
        return kept

    @abstractmethod
    def estimate(self, samples: Sequence[Sample]) -> Experience | None:
        """Advantages and all else that stays fixed during the step's updates; None where there is nothing to learn."""

    @abstractmethod
    def update(self, experience: Experience, step: int) -> Metrics:
        """All optimiser steps of this step."""

    def tensors(self, samples: Sequence[Sample]) -> Experience:
        """The samples as an experience with zero advantages; the reference's log-probabilities where it is needed."""
        rows = rows_of(samples)
        mask = response_mask(rows, self.forward.device)
        sampled = torch.zeros(mask.shape, device=mask.device)
        sampled[mask] = torch.tensor([p for sample in samples for p in sample.log_probs], device=mask.device)
        return Experience(
            rows=rows,
            mask=mask,
            sampled=sampled,
            scores=self.scores(samples, mask.device),
            groups=torch.tensor([sample.group for sample in samples], device=mask.device),
            advantages=torch.zeros(mask.shape, device=mask.device),
            reference=self.reference.log_probs(rows) if self.reference else None,
        )

    def scores(self, samples: Sequence[Sample], device: torch.device) -> Tensor:
        """[N] rewards, less what being cut and being long costs."""
        scores = torch.tensor([sample.reward or 0.0 for sample in samples], device=device)
        cut = torch.tensor([sample.finish == "length" for sample in samples], device=device)
        scores -= self.settings.truncated_penalty * cut
        longest = self.settings.max_new_tokens
        if self.settings.overlong_buffer > 0:
            buffer = max(1, round(self.settings.overlong_buffer * longest))
            lengths = torch.tensor([len(sample.completion_ids) for sample in samples], device=device)
            scores += self.settings.overlong_penalty * overlong_penalty(lengths, longest=longest, buffer=buffer)
        return scores

    def distance(self, experience: Experience) -> float:
        """KL(policy || SFT) in nats per sequence, on the step's samples."""
        policy = experience.sampled if experience.old is None else experience.old
        assert experience.reference is not None
        return sequence_kl(policy, experience.reference, experience.mask)

    def minibatches(self, groups: Sequence[int], step: int, size: int | None = None) -> list[list[int]]:
        """Numbers of each optimiser step: `epochs` passes over samples or pairs, each in its own order.

        Groups are shuffled and stay together, so that their samples share the prompt in a forward pass.
        """
        size = size or self.settings.minibatch
        members: dict[int, list[int]] = {}
        for number, group in enumerate(groups):
            members.setdefault(group, []).append(number)
        together, found = list(members.values()), []
        for epoch in range(self.settings.epochs):
            shuffled = permutation(len(together), self.context.seed, "step", step, "epoch", epoch)
            order = [number for i in shuffled for number in together[i]]
            found += [order[first : first + size] for first in range(0, len(order), size)]
        return found

    def forward_of(self, module: nn.Module) -> Forward:
        """How a role runs its model: with the policy's frozen layers kept, where the model has the same ones."""
        if self.frozen is None or not share_first(self.actor.model, module, self.actor.frozen_layers):
            return self.forward
        return dataclasses.replace(self.forward, frozen=self.frozen)

    def counters(self) -> dict[str, Any]:
        """Groups and policy versions so far, and the samples that wait in the buffer."""
        return {"rollout": self.rollout.state_dict(), "buffer": self.buffer.state_dict()}

    def restored(self, counters: Mapping[str, Any]) -> None:
        """The engine gets the restored weights before the counters say which version they are."""
        self.rollout.load_weights(self.actor.stream_weights())
        self.rollout.load_state_dict(counters["rollout"])
        self.buffer.load_state_dict(counters["buffer"])

    def _generating_model(self, model: PreTrainedModel, folder: Path) -> PreTrainedModel:
        """The policy itself, or a copy where generation has a precision of its own."""
        settings = self.context.config.model
        if settings.for_generation() == settings:
            return model
        return load_causal_lm(folder, settings.for_generation(), self.context.device)
