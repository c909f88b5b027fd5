"""Our policy-gradient methods against TRL's trainers, from stored vectors (recompute/trl*_vectors.py made them).

The vectors hold log-probabilities per token; the losses are those that our trainers make of a minibatch. The gradient
is the one with respect to each token's log-probability.

Known differences of definition, each undone where it is compared:
- TRL's `grpo` and `bnpo` divide by counts of a micro-batch, then by the number of micro-batches; ours by those of the
  minibatch. Equal for one micro-batch, as here.
- TRL's `luspo` with a ratio of the sequence is the sum over tokens of GSPO's loss, divided by the number of sequences.
- TRL's GRPO weights its KL term with the importance ratio unless `use_bias_correction_kl=False`, as here.
- TRL's `delta` is our `dual_clip`. TRL caps the ratio at it whatever the advantage's sign, which is the same as long as
  it is above 1 + clip_high; `clipped_high` counts tokens at it in ours only.
- TRL's CISPO has an upper bound only, and its `epsilon_high` is the bound itself, our 1 + clip_high.
- TRL counts clipped sequences, ours tokens, where the ratio is a sequence's.
- TRL's GRPO adds 1e-4 to the group's standard deviation, ours 1e-6.
- The factor n / (n - 1) of TRL's variances is float32, for GRPO's advantages and PPO's whitening. The recomputing
  scripts lift that.
- TRL's RLOO takes the KL penalty from the whole row's score; ours from each token's reward, and the estimator sums.
- TRL's PPO ends an episode one position after the last token, if the row is not full: the score stands there, and
  advantages, returns and values have that position too. Ours end at the last token. Compared on TRL's positions.
- TRL's PPO divides logits by the temperature + 1e-7. The recomputing script takes that off the temperature.
Not ours, so not compared: SAPO, VESPO, off-policy sequence masks, entropy masks, importance weights of vLLM, advantages
scaled by the batch's standard deviation, whitened rewards of PPO.
"""

from __future__ import annotations

import functools
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from stored import both_precisions, same, tokens, vectors
from torch import Tensor

from posttrain.algorithms import kl
from posttrain.algorithms.advantages import group
from posttrain.algorithms.advantages.gae import gae
from posttrain.algorithms.advantages.rloo import rloo
from posttrain.algorithms.policy_loss.cispo import cispo
from posttrain.algorithms.policy_loss.clipped import clipped_policy_loss
from posttrain.algorithms.policy_loss.gspo import gspo
from posttrain.algorithms.policy_loss.sequence_clipped import sequence_clipped
from posttrain.algorithms.value_loss import clipped_value_loss
from posttrain.algorithms.whiten import whiten
from posttrain.trainer.objectives.actor_critic import ActorCritic
from posttrain.trainer.policy_gradient import PolicyGradient

STORED, OLDER = vectors("trl"), vectors("trl_older")
WIDTH, GROUP = 6, 4

AGGREGATION = {
    "grpo": "sequence-mean",
    "bnpo": "token-mean",
    "dapo": "token-mean",
    "cispo": "token-mean",
    "dr_grpo": "sequence-sum",
    "luspo": "sequence-sum",
}


def policy_loss(
    case: dict[str, Any], policy: Tensor, mask: Tensor, part: Any, aggregation: str, constant: int = WIDTH
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of one minibatch that is one micro-batch, as our trainer has it. constant: of `sequence-sum`."""
    old, reference = (tokens(case, name, "mask", policy.dtype)[0].detach() for name in ("old", "reference"))
    advantages = torch.tensor(case["advantages"], dtype=policy.dtype)
    if advantages.dim() == 1:
        advantages = advantages[:, None].expand_as(old)
    experience = SimpleNamespace(mask=mask, old=old, sampled=old, reference=reference, advantages=advantages)
    run = SimpleNamespace(aggregation=aggregation, max_new_tokens=constant, kl_in="loss", entropy_coef=0.0)
    trainer = SimpleNamespace(
        settings=run, kl_coef=case.get("beta", 0.0), parts={"policy_loss": part, "kl_estimator": kl.k3}
    )
    rows = list(range(len(mask)))
    return PolicyGradient.policy_loss(trainer, experience, rows)(torch.tensor(rows), policy, mask)


def ours(settings: dict[str, Any]) -> Any:
    """Our policy loss with its settings bound, for those of TRL's GRPO."""
    low = settings.get("epsilon", 0.2)
    high = settings.get("epsilon_high", low)
    if settings["loss_type"] == "cispo":
        return functools.partial(cispo, clip_low=1.0, clip_high=high - 1)
    if settings.get("importance_sampling_level") == "sequence":
        return functools.partial(gspo, clip_low=low, clip_high=high)
    dual = settings.get("delta")
    return functools.partial(clipped_policy_loss, clip_low=low, clip_high=high, dual_clip=dual)


@both_precisions
@pytest.mark.parametrize("case", STORED["grpo"], ids=lambda case: str(case["settings"]))
def test_grpo(case: dict[str, Any], dtype: torch.dtype) -> None:
    settings = case["settings"]
    policy, mask = tokens(case, "policy", "mask", dtype)
    constant = 1 if settings["loss_type"] == "luspo" else WIDTH
    mode = AGGREGATION[settings["loss_type"]]
    loss, stats = policy_loss(case, policy, mask, ours(settings), mode, constant)
    loss.backward()
    same(loss, case["loss"])
    same(policy.grad, case["gradient"])
    if "clip_ratio/low_mean" in case["clipped"] and not settings.get("importance_sampling_level"):
        same(stats["clipped_low"], case["clipped"]["clip_ratio/low_mean"])
        if "delta" not in settings:
            same(stats["clipped_high"], case["clipped"]["clip_ratio/high_mean"])


def test_the_bounds_are_met_in_the_vectors() -> None:
    """A loss that ignored one of its bounds would differ: each is reached by some token of some case."""
    reached = {
        key: max(case["clipped"].get(key, 0.0) for case in STORED["grpo"])
        for key in ("clip_ratio/low_mean", "clip_ratio/high_mean", "cispo_clip_ratio")
    }
    assert all(share > 0.02 for share in reached.values()), reached
    for case in STORED["grpo"]:
        if "delta" in case["settings"]:
            policy, mask = tokens(case, "policy", "mask", torch.float64)
            part = ours({**case["settings"], "delta": None})
            loss, _ = policy_loss(case, policy, mask, part, AGGREGATION[case["settings"]["loss_type"]])
            assert abs(loss.item() - case["loss"]) > 0.1


@both_precisions
@pytest.mark.parametrize("case", STORED["rloo"])
def test_rloo(case: dict[str, Any], dtype: torch.dtype) -> None:
    policy, mask = tokens(case, "policy", "mask", dtype)
    low = case["settings"]["epsilon"]
    part = functools.partial(sequence_clipped, clip_low=low, clip_high=case["settings"].get("epsilon_high", low))
    loss, _ = policy_loss(case, policy, mask, part, "sequence-mean")
    loss.backward()
    same(loss, case["loss"])
    same(policy.grad, case["gradient"])
    assert case["clipped"]["clip_ratio/region_mean"] > 0


def outcome(case: dict[str, Any], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Scores [N], with NaN for those that are none, mask [N, R] and groups [N]."""
    scores = torch.tensor([math.nan if score is None else score for score in case["scores"]], dtype=dtype)
    mask = torch.arange(max(case["lengths"])) < torch.tensor(case["lengths"])[:, None]
    return scores, mask, torch.arange(len(scores)) // GROUP


@both_precisions
@pytest.mark.parametrize("case", STORED["grpo_advantages"])
def test_grpo_advantages(case: dict[str, Any], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "EPSILON", 1e-4)
    scores, mask, groups = outcome(case, dtype)
    rewards = kl.penalised_rewards(scores, torch.zeros_like(mask, dtype=dtype), mask, 0.0)
    scale = case["settings"]["scale_rewards"] == "group"
    advantages = group.group_advantages(rewards, mask, groups, scale_by_std=scale)
    same(advantages, per_token(case["advantages"], mask))


@both_precisions
@pytest.mark.parametrize("case", STORED["rloo_advantages"])
def test_rloo_advantages(case: dict[str, Any], dtype: torch.dtype) -> None:
    """With the KL penalty in the reward."""
    scores, mask, groups = outcome(case, dtype)
    old, reference = (torch.tensor(case[name], dtype=dtype) for name in ("old", "reference"))
    rewards = kl.penalised_rewards(scores, kl.k1(old, reference, mask), mask, case["beta"])
    same(rloo(rewards, mask, groups), per_token(case["advantages"], mask))


def per_token(advantages: list[float], mask: Tensor) -> list[list[float]]:
    return (torch.tensor(advantages, dtype=torch.float64)[:, None] * mask).tolist()


@both_precisions
@pytest.mark.parametrize("case", OLDER["ppo"])
def test_ppo(case: dict[str, Any], dtype: torch.dtype) -> None:
    """From scores and log-probabilities to advantages, and both losses of the first optimiser step."""
    theirs = case["settings"]
    policy, mask = tokens(case, "policy", "mask", dtype)
    old, reference = (tokens(case, name, "mask", dtype)[0].detach() for name in ("old", "reference"))
    values, value_mask = tokens(case, "values", "value_mask", dtype)
    old_values = tokens(case, "old_values", "value_mask", dtype)[0].detach()
    estimator = {"k1": kl.k1, "k3": kl.k3}[theirs.get("kl_estimator", "k1")]
    scores = torch.tensor(case["scores"], dtype=dtype)
    rewards = kl.penalised_rewards(scores, estimator(old, reference, mask), value_mask, theirs["kl_coef"])
    advantages, returns = gae(rewards, old_values, value_mask, gamma=theirs["gamma"], lam=theirs["lam"])
    same(advantages, case["advantages"])
    whitened = whiten(advantages, mask)
    same(whitened, (torch.tensor(case["whitened"], dtype=torch.float64) * mask).tolist())
    part = functools.partial(
        clipped_policy_loss, clip_low=theirs["cliprange"], clip_high=theirs["cliprange"], dual_clip=None
    )
    loss, _ = policy_loss({**case, "advantages": whitened.tolist()}, policy, mask, part, "token-mean")
    loss.backward()
    same(loss, case["policy_loss"])
    same(policy.grad, case["policy_gradient"])
    experience = SimpleNamespace(mask=value_mask, values=old_values, returns=returns)
    critic = SimpleNamespace(
        parts={"value_loss": functools.partial(clipped_value_loss, value_clip=theirs["cliprange_value"])}
    )
    rows = list(range(len(mask)))
    value_loss, _ = ActorCritic.value_loss(critic, experience, rows)(torch.tensor(rows), values, value_mask)
    value_loss.backward()
    same(value_loss, case["value_loss"])
    same(theirs.get("vf_coef", 0.1) * values.grad, case["value_gradient"])
