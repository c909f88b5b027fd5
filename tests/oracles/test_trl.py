"""Our losses against those of TRL's trainers, from stored vectors (recompute/trl_vectors.py made them).

The vectors hold log-probabilities per token. Masked ones are replaced by NaN here, so that nothing may read them. The
gradient is the one with respect to each token's log-probability, through our sum over the row and our mean.

Known differences of definition:
- TRL's GRPO with `loss_type="grpo"` averages within a micro-batch, then over micro-batches of any size; ours divides by
  the minibatch's count. Equal for one micro-batch, as here.
- TRL's GRPO weights its KL term with the importance ratio unless `use_bias_correction_kl=False`, as here.
- TRL's accuracies are float32 in any precision.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from posttrain.algorithms.aggregate import aggregate, normaliser, row_sum
from posttrain.algorithms.kl import k3
from posttrain.algorithms.policy_loss.clipped import clipped_policy_loss
from posttrain.algorithms.preference.bradley_terry import bradley_terry_loss
from posttrain.algorithms.preference.dpo import dpo_loss
from posttrain.algorithms.preference.kto import kl_baseline, kto_loss

STORED = json.loads((Path(__file__).parent / "vectors" / "trl.json").read_text())
AGGREGATION = {"grpo": "sequence-mean", "dapo": "token-mean"}

both_precisions = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])


def same(ours: Tensor, theirs: Any) -> None:
    rtol, atol = (1e-9, 1e-12) if ours.dtype == torch.float64 else (1e-5, 1e-6)
    torch.testing.assert_close(ours.detach(), torch.tensor(theirs, dtype=ours.dtype), rtol=rtol, atol=atol)


def same_gradient(ours: Tensor, theirs: Any, mask: Tensor) -> None:
    """TRL's is that of the sum over all tokens, masked ones included; ours must be 0 there."""
    same(ours, (torch.tensor(theirs, dtype=torch.float64) * mask).tolist())


def tokens(case: dict[str, Any], name: str, mask: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Log-probabilities per token with NaN where masked, and the mask."""
    unmasked = torch.tensor(case[mask]).bool()
    values = torch.tensor(case[name], dtype=dtype).masked_fill(~unmasked, torch.nan)
    return values.requires_grad_(), unmasked


def test_version() -> None:
    assert (STORED["peer"], STORED["version"]) == ("trl", "1.16.0")


@both_precisions
@pytest.mark.parametrize("case", STORED["dpo"])
def test_dpo(case: dict[str, Any], dtype: torch.dtype) -> None:
    policy, mask = tokens(case, "policy", "mask", dtype)
    reference, _ = tokens(case, "reference", "mask", dtype)
    chosen, rejected = row_sum(policy, mask).chunk(2)
    losses, stats = dpo_loss(chosen, rejected, *row_sum(reference, mask).chunk(2), case["beta"])
    loss = losses.sum() / len(losses)
    loss.backward()
    same(loss, case["loss"])
    same_gradient(policy.grad, case["gradient"], mask)
    for ours, theirs in [
        ("chosen_reward", "chosen"),
        ("rejected_reward", "rejected"),
        ("margin", "margins"),
    ]:
        same(stats[ours].mean(), case["metrics"][theirs])
    same(stats["accuracy"].float().mean(), case["metrics"]["accuracies"])


@both_precisions
@pytest.mark.parametrize("case", STORED["kto"])
def test_kto(case: dict[str, Any], dtype: torch.dtype) -> None:
    mismatched = [row_sum(*tokens(case, name, "kl_mask", dtype)) for name in ("kl_policy", "kl_reference")]
    baseline = kl_baseline(*mismatched)
    same(baseline, case["baseline"])
    policy, mask = tokens(case, "policy", "mask", dtype)
    logps, reference = row_sum(policy, mask), row_sum(*tokens(case, "reference", "mask", dtype)).detach()
    losses, _ = kto_loss(logps, reference, torch.tensor(case["labels"]), baseline, case["beta"], *case["weights"])
    loss = losses.sum() / len(losses)
    loss.backward()
    same(loss, case["loss"])
    same_gradient(policy.grad, case["gradient"], mask)


def test_kto_vectors_have_both_sides_of_the_clamp() -> None:
    baselines = [case["baseline"] for case in STORED["kto"]]
    assert min(baselines) == 0 < max(baselines)


@both_precisions
@pytest.mark.parametrize("case", STORED["reward"])
def test_bradley_terry(case: dict[str, Any], dtype: torch.dtype) -> None:
    chosen, rejected = (torch.tensor(case[name], dtype=dtype).requires_grad_() for name in ("chosen", "rejected"))
    losses, stats = bradley_terry_loss(chosen, rejected)
    loss = losses.sum() / len(losses)
    loss.backward()
    same(loss, case["loss"])
    same(torch.cat([chosen.grad, rejected.grad]), case["gradient"])
    same(stats["accuracy"].float().mean(), case["accuracy"])
    same(stats["margin"].mean(), case["margin"])


@both_precisions
@pytest.mark.parametrize("case", STORED["grpo"])
def test_grpo(case: dict[str, Any], dtype: torch.dtype) -> None:
    policy, mask = tokens(case, "policy", "mask", dtype)
    old, reference = (tokens(case, name, "mask", dtype)[0].detach() for name in ("old", "reference"))
    advantages = torch.tensor(case["advantages"], dtype=dtype)[:, None].expand_as(old)
    losses, _ = clipped_policy_loss(policy, old, advantages, mask, 0.2, 0.28)
    losses = losses + case["beta"] * k3(policy, reference, mask)
    mode = AGGREGATION[case["loss_type"]]
    loss = aggregate(losses, mask, mode, count=normaliser(mask, mode))
    loss.backward()
    same(loss, case["loss"])
    same_gradient(policy.grad, case["gradient"], mask)
