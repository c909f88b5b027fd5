"""Our losses on stored data against those of TRL's trainers, from stored vectors (recompute/trl*_vectors.py made them).

The vectors hold log-probabilities per token; ours are called as our trainers call them. The gradient is the one with
respect to each token's log-probability, through our sum or mean over the row and our normaliser.

Known differences of definition, each undone where it is compared:
- TRL's DPO knows label smoothing in `robust` and `aot` only. The conservative loss is compared with CPO's, which has
  it, and with `aot_unpaired` of a single pair, which is the same formula.
- TRL's DPO takes means over tokens for `ipo` and `sigmoid_norm` without a setting; ours with `length_normalised`. The
  rewards that TRL logs are of sums even then; ours are of what the loss sees.
- TRL's `bco_pair` is BCO with a reward shift that stays 0, and the loss of a pair is the sum of its two completions'.
- TRL's BCO moves the reward shift by the rewards of the micro-batch that it then measures from it; ours is that of the
  minibatches before, so that it needs no pass of its own and is the same in every micro-batch.
- TRL's SimPO is CPO's trainer with `simpo_gamma`, our `target_margin`: both in units of reward, beta not divided out.
- TRL's ORPO trains on the prompt too (its negative log-likelihood). The vectors' prompts are one token long, for which
  there is no label.
- TRL's ORPO and BCO cast to float32 whatever the model's precision, and so do all its counts of right answers. The
  recomputing scripts lift that.
- TRL's KTO logs rewards of good and bad completions apart; ours logs their mean over both.
Not ours, so not compared: f-divergences, EXO, NCA, SPPO, APO, AOT, DiscoPOP, LD-DPO, WPO, AlphaPO, BCO's matching of
prompt distributions, DFT.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from stored import both_precisions, same, tokens, vectors
from torch import Tensor

from posttrain.algorithms.aggregate import aggregate, row_sum
from posttrain.algorithms.preference.bco import bco, running_shift
from posttrain.algorithms.preference.bradley_terry import bradley_terry
from posttrain.algorithms.preference.hinge import hinge
from posttrain.algorithms.preference.ipo import ipo
from posttrain.algorithms.preference.kto import kl_baseline, kto
from posttrain.algorithms.preference.orpo import orpo
from posttrain.algorithms.preference.robust import robust
from posttrain.algorithms.preference.sigmoid import sigmoid
from posttrain.algorithms.preference.simpo import simpo
from posttrain.trainer.metrics import row_mean
from posttrain.trainer.pair_loss import pair_loss

STORED, OLDER = vectors("trl"), vectors("trl_older")

# (trainer, TRL's loss_type) -> our loss, whether it is one of means over tokens
PAIR_LOSSES = {
    ("dpo", "sigmoid"): (sigmoid, False),
    ("dpo", "aot_unpaired"): (sigmoid, False),
    ("dpo", "robust"): (robust, False),
    ("dpo", "ipo"): (ipo, True),
    ("dpo", "hinge"): (hinge, False),
    ("dpo", "sigmoid_norm"): (sigmoid, True),
    ("cpo", "sigmoid"): (sigmoid, False),
    ("cpo", "hinge"): (hinge, False),
    ("cpo", "ipo"): (ipo, True),
    ("cpo", "simpo"): (simpo, True),
    ("orpo", None): (orpo, True),
}
LOGGED = {"chosen_reward": "chosen", "rejected_reward": "rejected", "margin": "margins", "accuracy": "accuracies"}


def test_versions() -> None:
    assert (STORED["peer"], STORED["version"]) == ("trl", "1.16.0")
    assert (OLDER["peer"], OLDER["version"]) == ("trl", "1.12.0")


@both_precisions
@pytest.mark.parametrize("case", STORED["sft"])
def test_sft(case: dict[str, Any], dtype: torch.dtype) -> None:
    """Micro-batches with the count of the whole minibatch."""
    count = sum(token for mask in case["masks"] for row in mask for token in row)
    for part, theirs in enumerate(case["losses"]):
        policy, mask = tokens({"policy": case["policy"][part], "mask": case["masks"][part]}, "policy", "mask", dtype)
        loss = aggregate(-policy, mask, "token-mean", count=count)
        loss.backward()
        same(loss, theirs)
        same(policy.grad, case["gradients"][part])


@both_precisions
@pytest.mark.parametrize("case", STORED["reward"])
def test_bradley_terry(case: dict[str, Any], dtype: torch.dtype) -> None:
    chosen, rejected = (torch.tensor(case[name], dtype=dtype).requires_grad_() for name in ("chosen", "rejected"))
    gap = torch.tensor(case["margins"] or [0.0] * len(chosen), dtype=dtype)
    losses, stats = bradley_terry(chosen, rejected, gap, centre_coef=case["centring"] or 0.0, label_smoothing=0.0)
    loss = row_mean(losses, len(losses))
    loss.backward()
    same(loss, case["loss"])
    same(torch.cat([chosen.grad, rejected.grad]), case["gradient"])
    same(stats["accuracy"].mean(), case["accuracy"])
    same(stats["margin"].mean(), case["margin"])


def ours(case: dict[str, Any]) -> tuple[Any, SimpleNamespace]:
    """Our loss with its settings bound, and the trainer's settings, for those of a case of TRL."""
    theirs, name = case["settings"], case["settings"].get("loss_type")
    loss, means = PAIR_LOSSES[case["trainer"], name[0] if isinstance(name, list) else name]
    bound = {"beta": theirs["beta"]}
    if loss in (sigmoid, robust):
        bound["label_smoothing"] = theirs.get("label_smoothing", 0.0)
    if loss is simpo:
        bound["target_margin"] = theirs["simpo_gamma"]
    in_dpo = theirs["loss_weights"][1] if isinstance(name, list) else 0.0
    nll_coef = {"dpo": in_dpo, "cpo": theirs.get("cpo_alpha"), "orpo": 1.0}[case["trainer"]]
    return functools.partial(loss, **bound), SimpleNamespace(length_normalised=means, nll_coef=nll_coef)


def called(case: dict[str, Any], policy: Tensor, mask: Tensor, part: Any, settings: SimpleNamespace) -> tuple[Any, Any]:
    """The loss as our trainer has it, whose pairs stand side by side; TRL's have all the chosen ones first."""
    pairs = torch.arange(len(mask)).view(2, -1).T
    reference = None
    if case["reference"] is not None:
        reference = row_sum(*tokens(case, "reference", "mask", policy.dtype)).detach()[pairs]
    units = [(([], [0] * chosen), ([], [0] * rejected)) for chosen, rejected in mask.sum(1)[pairs].tolist()]
    loss = pair_loss(part, settings, units, reference)
    return loss(torch.arange(len(units)), policy[pairs.flatten()], mask[pairs.flatten()])


@both_precisions
@pytest.mark.parametrize("case", STORED["pairs"], ids=lambda case: f"{case['trainer']}-{case['settings']}")
def test_pair_losses(case: dict[str, Any], dtype: torch.dtype) -> None:
    part, settings = ours(case)
    policy, mask = tokens(case, "policy", "mask", dtype)
    loss, stats = called(case, policy, mask, part, settings)
    loss.backward()
    same(loss, case["loss"])
    same(policy.grad, case["gradient"])
    if case["trainer"] == "dpo" and settings.length_normalised:
        sums = SimpleNamespace(length_normalised=False, nll_coef=0.0)
        _, stats = called(case, policy, mask, part, sums)
    for ours_, theirs in LOGGED.items():
        same(stats[ours_], case["metrics"][theirs])


def test_every_pair_loss_that_trl_has_is_compared() -> None:
    compared = {ours(case)[0].func.__name__ for case in STORED["pairs"]}
    assert compared == {"sigmoid", "robust", "ipo", "hinge", "simpo", "orpo"}


@both_precisions
@pytest.mark.parametrize("case", STORED["kto"])
def test_kto(case: dict[str, Any], dtype: torch.dtype) -> None:
    baseline = kl_baseline(*(row_sum(*tokens(case, name, "kl_mask", dtype)) for name in ("kl_policy", "kl_reference")))
    same(baseline, case["baseline"])
    policy, mask = tokens(case, "policy", "mask", dtype)
    ratios, labels = log_ratios(case, policy, mask)
    losses, stats = kto(ratios, labels, baseline, **case["settings"])
    compare_loss(case, policy, losses)
    for name, wanted in [("chosen", labels), ("rejected", ~labels)]:
        if name in case["metrics"]:
            same(stats["reward"][wanted].mean(), case["metrics"][name])


def log_ratios(case: dict[str, Any], policy: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    reference = row_sum(*tokens(case, "reference", "mask", policy.dtype)).detach()
    return row_sum(policy, mask) - reference, torch.tensor(case["labels"])


def compare_loss(case: dict[str, Any], policy: Tensor, losses: Tensor) -> None:
    loss = row_mean(losses, len(losses))
    loss.backward()
    same(loss, case["loss"])
    same(policy.grad, case["gradient"])


def test_kto_vectors_have_both_sides_of_the_clamp() -> None:
    baselines = [case["baseline"] for case in STORED["kto"]]
    assert min(baselines) == 0 < max(baselines)


@both_precisions
@pytest.mark.parametrize("case", STORED["bco_pair"])
def test_bco_without_a_shift(case: dict[str, Any], dtype: torch.dtype) -> None:
    policy, mask = tokens(case, "policy", "mask", dtype)
    rows = len(mask)
    ratios, labels = log_ratios({**case, "labels": [i < rows // 2 for i in range(rows)]}, policy, mask)
    losses, _ = bco(ratios, labels, torch.zeros((), dtype=dtype), beta=case["settings"]["beta"])
    loss = 2 * row_mean(losses, rows)
    loss.backward()
    same(loss, case["loss"])
    same(policy.grad, case["gradient"])


@both_precisions
def test_bco(dtype: torch.dtype) -> None:
    """A minibatch after the other, each measured from the mean of all rewards, its own included."""
    shift, seen = 0.0, 0
    for case in OLDER["bco"]:
        policy, mask = tokens(case, "policy", "mask", dtype)
        ratios, labels = log_ratios(case, policy, mask)
        reward = case["beta"] * ratios.detach().mean().item()
        shift = running_shift(shift, seen, reward, len(ratios))
        seen += len(ratios)
        baseline = torch.tensor(shift, dtype=dtype)
        same(baseline, case["shift"])
        losses, stats = bco(ratios, labels, baseline, beta=case["beta"])
        compare_loss(case, policy, losses)
        for name, wanted in [("chosen_sum", labels), ("rejected_sum", ~labels)]:
            if name in case["metrics"]:
                same(stats["reward"][wanted].sum(), case["metrics"][name])
