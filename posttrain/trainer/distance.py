"""How far a policy has come from the SFT model, and the budget for it."""

from __future__ import annotations

from torch import Tensor

from posttrain.algorithms.kl import k3
from posttrain.config.runs import Offline
from posttrain.data.tokenizer import load_tokenizer
from posttrain.model.layers import share_first
from posttrain.model.load import load_causal_lm
from posttrain.roles.actor import Actor
from posttrain.roles.batches import Forward, response_mask
from posttrain.roles.reference import Reference
from posttrain.rollout.engine import Sampling
from posttrain.rollout.manager import RolloutManager
from posttrain.rollout.transformers_engine import TransformersEngine
from posttrain.runtime.seeds import derive
from posttrain.trainer.context import Context
from posttrain.trainer.order import permutation
from posttrain.trainer.rows import rows_of, training_prompts


def over_budget(context: Context, step: int, distance: float, budget: float | None) -> bool:
    """Whether `distance` (nats per sequence) is more than a budget allows; says so in the log."""
    if budget is None or distance <= budget:
        return False
    context.log.info("ends at step %d: KL %.3g nats per sequence, kl_budget is %g", step, distance, budget)
    return True


def sequence_kl(policy: Tensor, reference: Tensor, mask: Tensor) -> float:
    """KL(policy || reference), nats per sequence, by k3: log-probabilities of the policy's samples, mask [N, R]."""
    return float(k3(policy, reference, mask).sum() / mask.any(-1).sum())


class Probe:
    """Measures a policy that does not sample while it trains, on the same prompts with the same random numbers.

    The SFT model is the policy without its adapters, or loaded, its first layers in the policy's memory where they are
    the same.
    """

    def __init__(self, context: Context, settings: Offline, actor: Actor) -> None:
        folder, model = context.inputs["sft"] / "model", context.config.model
        tokenizer, probe = load_tokenizer(folder), settings.kl_probe
        prompts = training_prompts(context)
        self._actor = actor
        self._prompts = [prompts[i] for i in permutation(len(prompts), context.seed, "kl probe")[: probe.prompts]]
        self._sampling = Sampling(probe.max_new_tokens, 1.0, tokenizer.eos_id, probe.prompts)
        self._seed = derive(context.seed, "kl probe")
        reference = actor.model if settings.lora else load_causal_lm(folder, model, context.device)
        share_first(actor.model, reference, actor.frozen_layers)
        self._reference = Reference(reference, Forward(tokenizer.pad_id, settings.microbatch_tokens, context.device))
        self._rollout = RolloutManager(TransformersEngine(actor.model))

    def distance(self) -> float:
        """KL(policy || SFT) in nats per sequence, on one sample a prompt."""
        samples = self._rollout.generate(self._prompts, 1, self._sampling, self._seed)
        rows = rows_of(samples)
        mask = response_mask(rows, self._reference.forward.device)
        return sequence_kl(self._actor.log_probs(rows), self._reference.log_probs(rows), mask)
